"""Test scores by sex within each fold: scikit-learn fold by fold, and the number of defined folds."""

from __future__ import annotations

from statistics import fmean, stdev

import pandas as pd
import pytest
from make_runs import make_run
from read_page import Page, words
from sklearn.metrics import roc_auc_score

from medfl_report.page import write_report
from medfl_report.sections.fairness_measures import AucBySex, over_folds

pytestmark = pytest.mark.usefixtures("undrawn")

TABLE = "By sex, fold by fold"


def make(tmp_path, fold, women=True, **options):
    """A run of two sites; without women who differ in their class, if asked for."""
    options = {"classes": ("control", "autism"), "metrics": ("auc",), "state": False, "sites": ("a", "b")} | options
    folder = make_run(
        tmp_path / f"{fold}", "fedskd", fold=fold, data=f"fold {fold}", images=40, sex=("male", "female"), **options
    )
    if not women:
        for path in folder.glob("sites/*/predictions.csv"):
            table = pd.read_csv(path)
            table.assign(label=table["label"].where(table["sex"] == "male", 1)).to_csv(path, index=False)
    return folder


def area(folder, sex):
    """The mean over the sites of a sex' area in a fold."""
    tables = [pd.read_csv(path) for path in sorted(folder.glob("sites/*/predictions.csv"))]
    own = [table[table["sex"] == sex] for table in tables]
    return fmean(roc_auc_score(table["label"], table["p1"]) for table in own)


def test_a_number_is_over_the_folds_that_have_it():
    columns = over_folds([AucBySex(0.5, 0.7, 2, 2), AucBySex(0.7, None, 2, 0), AucBySex(0.9, 0.8, 1, 1)])
    assert (columns["male"].value.mean, columns["male"].value.spread) == pytest.approx((0.7, 0.2))
    assert (columns["female"].value.mean, columns["female"].defined, columns["female"].folds) == (
        pytest.approx(0.75),
        2,
        3,
    )
    assert columns["difference"].value.mean == pytest.approx((0.2 + 0.1) / 2)
    assert columns["average"].value.mean == pytest.approx((0.6 + 0.85) / 2)


def test_the_page_has_scikit_learns_areas_and_the_number_of_folds(tmp_path):
    folders = [make(tmp_path, fold, women=fold != 1) for fold in range(3)]
    document = Page(write_report(folders, tmp_path / "page.html").read_text())
    males = [area(folder, "male") for folder in folders]
    females = [area(folders[fold], "female") for fold in (0, 2)]
    row = [words(cell) for cell in document.tables[TABLE][1]]
    assert row[0] == "fedskd"
    assert row[1] == f"{fmean(males):.3f} ± {stdev(males):.3f}3 of 3 folds"
    assert row[2] == f"{fmean(females):.3f} ± {stdev(females):.3f}2 of 3 folds"
    assert row[4].endswith("2 of 3 folds")


def test_without_folds_there_is_no_such_table(tmp_path):
    document = Page(write_report([make(tmp_path, None)]).read_text())
    assert "fairness" in document.sections
    assert TABLE not in document.tables
