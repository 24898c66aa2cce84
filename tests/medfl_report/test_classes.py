"""Test the gains of classes: against scikit-learn from the run folders, and without anything to show."""

from __future__ import annotations

from statistics import fmean, stdev

import numpy as np
import pandas as pd
import pytest
from make_runs import make_run
from read_page import Page, render_section, words
from refusals import refused
from sklearn.metrics import roc_auc_score

from medfl.engine.runs.records import read_run
from medfl.errors import SettingsError
from medfl_report.groups import group_runs
from medfl_report.page import write_report
from medfl_report.predictions import read_prediction_sets
from medfl_report.sections.classes import classes_section

pytestmark = pytest.mark.usefixtures("undrawn")

CLASSES = ("x", "y", "z")
TABLE = "AUC of each class"


def section(folders, baseline=None):
    """Return the content of the section for some runs; None if there is none."""
    records = [read_run(folder) for folder in folders]
    content = classes_section(
        group_runs(records), {str(run.folder): read_prediction_sets(run) for run in records}, baseline
    )
    if content is None:
        return None
    html = render_section("classes", content)
    return Page(f'<section id="classes">{html}</section>')


def make(tmp_path, method, **options):
    options = {"classes": CLASSES, "metrics": ("auc",), "state": False, "sites": ("a", "b")} | options
    folder = tmp_path / f"{method}-{options.get('seed', 0)}-{options.get('fold')}"
    return make_run(folder, method, skill=0.3 if method == "local" else 1.5, **options)


def area(folders, site, number):
    """The area of a class at a site over folds."""
    tables = [read_run(folder).predictions(site) for folder in folders]
    ranks = np.concatenate([table[f"p{number}"].rank(pct=True) - 0.5 / len(table) for table in tables])
    return roc_auc_score(np.concatenate([table["label"] for table in tables]) == number, ranks)


def relabel(run, site, old, new):
    """Change a label in a site's predictions."""
    path = run / "sites" / site / "predictions.csv"
    table = pd.read_csv(path)
    table.assign(label=table["label"].replace(old, new)).to_csv(path, index=False)


def test_each_class_is_that_of_scikit_learn_over_folds_sites_and_seeds(tmp_path):
    draws = [{"seed": seed, "fold": fold, "data": f"{seed} {fold}"} for seed in (0, 1) for fold in (0, 1)]
    runs = {m: [make(tmp_path, m, **draw) for draw in draws] for m in ("local", "fedskd")}
    table = section([*runs["local"], *runs["fedskd"]]).tables[TABLE]
    for number, row in enumerate(table[1:]):
        alone, other = (
            [fmean(area(runs[m][2 * s : 2 * s + 2], site, number) for site in ("a", "b")) for s in (0, 1)]
            for m in ("local", "fedskd")
        )
        gaps = [b - a for a, b in zip(alone, other, strict=True)]
        assert [words(cell) for cell in row[-5:]] == [
            CLASSES[number],
            "2",
            f"{fmean(alone):.3f} ± {stdev(alone):.3f}",
            f"{fmean(other):.3f} ± {stdev(other):.3f}",
            f"{fmean(gaps):+.3f} ± {stdev(gaps):.3f}",
        ]


@pytest.mark.parametrize(
    ("baseline", "against"),
    [
        (None, {"fedcross": "local", "fedskd": "local"}),
        ("fedcross", {"local": "fedcross", "fedskd": "fedcross"}),
        ({"fedskd": "fedcross"}, {"fedcross": "local", "fedskd": "fedcross"}),
    ],
)
def test_any_method_may_be_the_baseline(tmp_path, baseline, against):
    """Captions name one reference for all methods, or one for each; picture and tables have the same numbers."""
    runs = {method: make(tmp_path, method) for method in ("local", "fedcross", "fedskd")}
    document = section(runs.values(), baseline)
    rows = {words(row[0]): row for row in document.tables[TABLE][1:] if len(row) == 6}
    assert list(rows) == [f"{label} against {base}" for label, base in against.items()]
    for (label, base), row in zip(against.items(), rows.values(), strict=True):
        gap = fmean(area([runs[label]], s, 0) - area([runs[base]], s, 0) for s in ("a", "b"))
        assert words(row[5]).replace("\N{MINUS SIGN}", "-") == f"{gap:+.3f}"
    over = next(iter(against.values())) if len(set(against.values())) == 1 else "the reference of each"
    assert f"Difference in AUC from {over}" in words(document.sections["classes"])


def test_the_report_takes_a_baseline_and_refuses_one_that_is_no_run(tmp_path):
    runs = [make(tmp_path, method) for method in ("local", "fedcross", "fedskd")]
    page = Page(write_report(runs, tmp_path / "page.html", baseline="fedcross").read_text())
    assert "fedskd against fedcross" in [words(row[0]) for row in page.tables[TABLE]]
    with refused(SettingsError, "unknown_choice", what="baseline", choice="fedcros"):
        write_report(runs, tmp_path / "page.html", baseline="fedcros")


def test_a_class_counts_at_the_sites_that_have_it(tmp_path):
    runs = [make(tmp_path, method) for method in ("local", "fedskd")]
    for run in runs:
        relabel(run, "b", 2, 1)
    rows = section(runs).tables[TABLE][1:]
    assert [row[-4] for row in rows] == ["2", "2", "1"]
    alone, other = (area([run], "a", 2) for run in runs)
    assert rows[2][-3:] == [f"{alone:.3f}", f"{other:.3f}", f"{other - alone:+.3f}"]


def test_a_site_with_other_images_on_either_side_is_left_out(tmp_path):
    runs = [make(tmp_path, method) for method in ("local", "fedskd")]
    relabel(runs[1], "b", 2, 1)
    assert [row[-4] for row in section(runs).tables[TABLE][1:]] == ["1", "1", "1"]


def test_the_number_of_sites_is_the_fewest_of_the_seeds(tmp_path):
    runs = [make(tmp_path, method, seed=seed) for method in ("local", "fedskd") for seed in (0, 1)]
    for run in (runs[1], runs[3]):
        relabel(run, "b", 2, 1)
    assert [row[-4] for row in section(runs).tables[TABLE][1:]] == ["2", "2", "1"]


@pytest.mark.parametrize(
    ("local", "fedskd"),
    [
        ({"classes": ("x", "y")}, {"classes": ("x", "y")}),
        ({"data": "one"}, {"data": "two"}),
        ({}, {"status": "running"}),
        ({"bundles": False}, {}),
    ],
)
def test_nothing_is_shown_where_nothing_can_be_compared(tmp_path, local, fedskd):
    runs = [make(tmp_path, "local", **local), make(tmp_path, "fedskd", **fedskd)]
    assert section(runs) is None
    assert section(runs[1:]) is None
