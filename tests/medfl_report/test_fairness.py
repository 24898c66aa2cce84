"""Test scores by sex: the paper's numbers, closed forms of pooled ranks, and scikit-learn as a reference."""

from __future__ import annotations

import json
from statistics import fmean, stdev

import numpy as np
import pandas as pd
import pytest
import torch
from make_runs import make_run
from read_page import Page, render_section, words
from sklearn.metrics import roc_auc_score

from medfl.engine.runs.records import read_run
from medfl.objectives import Multiclass
from medfl_report.groups import group_runs
from medfl_report.page import write_report
from medfl_report.predictions import PredictionSet as Answers
from medfl_report.predictions import read_prediction_sets
from medfl_report.sections.fairness import fairness_section
from medfl_report.sections.fairness_measures import (
    AucBySex,
    SiteBySex,
    Subgroup,
    over_sites,
    rank_normalised,
    site_by_sex,
)

pytestmark = pytest.mark.usefixtures("undrawn")


def fold(scores, labels, sex, classes=2):
    """A fold of two classes from the score of class 1, or of more from all scores."""
    values = torch.as_tensor(np.asarray(scores), dtype=torch.float64)
    probabilities = torch.stack([1 - values, values], dim=1) if classes == 2 else values
    return Answers(torch.arange(len(labels)), torch.as_tensor(labels), probabilities, Multiclass(classes), tuple(sex))


def sites(males, females):
    return [
        SiteBySex(str(n), *(Subgroup(9, 4, 2, auc) for auc in pair), 0)
        for n, pair in enumerate(zip(males, females, strict=True))
    ]


# ---- means and differences


def test_the_papers_row():
    groups = AucBySex(0.6746, 0.7960, 4, 4)
    assert groups.difference == pytest.approx(0.1214)
    assert groups.average == pytest.approx(0.7353)


def test_the_difference_is_that_of_the_means_over_the_sites():
    """Site by site it would be 0.1 and 0.3, in the mean 0.2."""
    groups = over_sites(sites((0.7, 0.9), (0.8, 0.6)))
    assert (groups.male, groups.female) == pytest.approx((0.8, 0.7))
    assert groups.difference == pytest.approx(0.1)


def test_a_subgroup_that_is_not_defined_is_left_out_of_its_mean_only():
    groups = over_sites(sites((0.7, 0.9), (0.6, None)))
    assert (groups.male, groups.female) == pytest.approx((0.8, 0.6))
    assert (groups.male_sites, groups.female_sites) == (2, 1)
    nobody = over_sites(sites((0.7, 0.9), (None, None)))
    assert (nobody.female, nobody.average, nobody.difference) == (None, None, None)
    assert nobody.male == pytest.approx(0.8)


# ---- one site


def test_ranks_lie_between_0_and_1_with_ties_in_the_middle():
    ranks = rank_normalised(torch.tensor([[0.3, 5.0], [0.1, 5.0], [0.9, 5.0], [0.3, 7.0]]))
    assert ranks[:, 0].tolist() == [0.5, 0.125, 0.875, 0.5]
    assert ranks[:, 1].tolist() == [0.375, 0.375, 0.375, 0.875]


def test_folds_whose_models_differ_in_scale_are_as_one():
    """Men are ranked without a mistake in each fold, but the second model's scores are all above the first's."""
    first = fold([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], ["male"] * 4)
    second = fold([0.91, 0.92, 0.93, 0.94], [0, 0, 1, 1], ["male"] * 4)
    assert site_by_sex("a", [first, second]).male.auc == 1.0
    raw = [score for part in (first, second) for score in part.predictions[:, 1]]
    assert roc_auc_score([0, 0, 1, 1] * 2, raw) == 0.75


def test_ranks_are_taken_among_men_and_women_together():
    """The man of each fold has a place among all; among men alone he would be in the middle of both folds."""
    first = fold([0.9, 0.1, 0.2], [1, 0, 1], ["male", "female", "female"])
    second = fold([0.3, 0.6, 0.7], [0, 0, 1], ["male", "female", "female"])
    site = site_by_sex("a", [first, second])
    assert site.male.auc == 1.0
    # Women: places 1/6 (negative) and 1/2 (positive), then 1/2 (negative) and 5/6 (positive): one tie in four pairs.
    assert site.female.auc == pytest.approx(3.5 / 4)


@pytest.mark.parametrize("classes", [2, 4])
def test_one_fold_gives_scikit_learns_area(classes):
    rng = np.random.default_rng(classes)
    labels, sex = rng.integers(classes, size=60), np.where(rng.random(60) < 0.3, "female", "male")
    scores = rng.dirichlet(np.ones(classes), size=60).round(2)
    scores = scores[:, 1] if classes == 2 else scores
    site = site_by_sex("a", [fold(scores, labels, sex, classes)])
    for group in ("male", "female"):
        chosen = sex == group
        columns = scores[chosen][:, None] if classes == 2 else scores[chosen]
        positive = [1] if classes == 2 else range(classes)
        areas = [roc_auc_score(labels[chosen] == c, columns[:, k]) for k, c in enumerate(positive)]
        assert getattr(site, group).auc == pytest.approx(fmean(areas), abs=1e-12)


def test_pooled_folds_against_scikit_learn_on_ranks_of_numpy():
    rng = np.random.default_rng(3)
    parts = [(rng.random(n).round(1), rng.integers(2, size=n), rng.choice(["male", "female"], n)) for n in (11, 17, 8)]
    ranks = [np.array([(s < x).mean() + (s == x).mean() / 2 for x in s]) for s, _, _ in parts]
    pooled, labels, sex = np.concatenate(ranks), *(np.concatenate([part[k] for part in parts]) for k in (1, 2))
    site = site_by_sex("a", [fold(*part) for part in parts])
    for group in ("male", "female"):
        expected = roc_auc_score(labels[sex == group], pooled[sex == group])
        assert getattr(site, group).auc == pytest.approx(expected, abs=1e-12)


def test_a_rising_transformation_of_a_folds_scores_changes_nothing():
    rng = np.random.default_rng(5)
    labels, sex = rng.integers(2, size=(2, 20)), ["male", "female"] * 10
    scores = rng.random((2, 20))
    plain = site_by_sex("a", [fold(s, y, sex) for s, y in zip(scores, labels, strict=True)])
    bent = site_by_sex("a", [fold(scores[0] ** 3 / 9, labels[0], sex), fold(scores[1], labels[1], sex)])
    assert bent == plain


def test_classes_that_a_subgroup_lacks_are_skipped_and_counted():
    scores = np.eye(4)[[0, 1, 2, 3, 0, 1]]
    site = site_by_sex("a", [fold(scores, [0, 1, 2, 3, 0, 0], ["male"] * 4 + ["female"] * 2, 4)])
    assert (site.male.classes, site.male.auc) == (4, 1.0)
    assert (site.female.classes, site.female.auc, site.female.images) == (0, None, 2)


def test_unknown_sex_is_counted_and_in_no_subgroup():
    site = site_by_sex("a", [fold([0.1, 0.9, 0.4, 0.5], [0, 1, 0, 1], ["Male", " male ", "", "other"])])
    assert (site.male.images, site.male.auc, site.female.images, site.unknown) == (2, 1.0, 0, 2)


# ---- the section

OPTIONS = {"classes": ("control", "autism"), "metrics": ("auc",), "state": False, "sites": ("a", "b")}


def shown(folders):
    """The section about some runs, taken apart; None where there is none."""
    records = [read_run(folder) for folder in folders]
    content = fairness_section(group_runs(records), {str(run.folder): read_prediction_sets(run) for run in records})
    if content is None:
        return None
    html = render_section("fairness", content)
    return Page(f'<section id="fairness">{html}</section>')


@pytest.fixture
def section(tmp_path):
    """Make runs and show them."""

    def write(*runs: tuple[str, dict]) -> Page | None:
        return shown([make_run(tmp_path / name, name.split("-")[0], **OPTIONS | options) for name, options in runs])

    return write


def areas(folders, site, sex):
    """The area of one sex at one site over folds, by scikit-learn, from the run folders."""
    tables = [read_run(folder).predictions(site) for folder in folders]
    ranks = np.concatenate([(table["p1"].rank() - 0.5) / len(table) for table in tables])
    labels, sexes = (np.concatenate([table[name] for table in tables]) for name in ("label", "sex"))
    return roc_auc_score(labels[sexes == sex], ranks[sexes == sex])


def test_folds_of_a_seed_are_pooled_and_seeds_are_spread(section, tmp_path):
    runs = [
        (f"fedskd-{seed}-{n}", {"seed": seed, "fold": n, "data": f"{seed} {n}", "sex": ("male", "female")})
        for seed in (0, 1)
        for n in range(3)
    ]
    document = section(*runs)
    means = [
        [fmean(areas([tmp_path / f"fedskd-{seed}-{n}" for n in range(3)], site, sex) for site in ("a", "b"))]
        for seed in (0, 1)
        for sex in ("male", "female")
    ]
    male, female = ([means[k][0], means[k + 2][0]] for k in (0, 1))
    gaps = [abs(m - f) for m, f in zip(male, female, strict=True)]
    averages = [(m + f) / 2 for m, f in zip(male, female, strict=True)]
    row = [words(cell.replace("2 of 2 sites", "")) for cell in document.tables["By sex"][1]]
    assert row == [
        "fedskd",
        *(f"{fmean(values):.3f} ± {stdev(values):.3f}" for values in (male, female, averages, gaps)),
    ]
    assert [words(cell) for cell in document.tables["By sex at each site: fedskd, seed 1"][3]][1:] == [
        f"{male[1]:.3f}",
        f"{female[1]:.3f}",
        f"{gaps[1]:.3f}",
    ]


def test_an_undefined_subgroup_is_shown_with_its_counts(tmp_path):
    folder = make_run(tmp_path / "fedskd", "fedskd", images=6, sex=("male", "male", "female"), **OPTIONS)
    for site, labels in (("a", [0, 1, 1, 0, 1, 1]), ("b", [0, 1, 1, 0, 1, 0])):  # both women of a have class 1
        path = folder / "sites" / site / "predictions.csv"
        pd.read_csv(path).assign(label=labels, p1=[0.1, 0.6, 0.9, 0.2, 0.5, 0.3]).to_csv(path, index=False)
    document = shown([folder])
    rows = [[words(cell) for cell in row] for row in document.tables["By sex at each site: fedskd"]]
    assert rows[1] == ["a", "1.0004 images, 2 positive", "–2 images, 2 positive", "–"]
    assert rows[2] == ["b", "1.0004 images, 2 positive", "1.0002 images, 1 positive", "0.000"]
    assert rows[3] == ["mean of sites", "1.000", "1.000", "0.000"]
    row = ["fedskd", "1.0002 of 2 sites", "1.0001 of 2 sites", "1.000", "0.000"]
    assert [words(cell) for cell in document.tables["By sex"][1]] == row
    text = words(document.sections["fairness"])
    assert "positive: autism" in text
    assert "In fedskd the AUC of men or of women is not defined at every site." in text


def test_no_section_without_sex_and_a_name_for_those_who_lack_it(section):
    assert section(("local", {})) is None
    document = section(("local-1", {}), ("fedskd", {"sex": ("male", "female")}))
    assert "No predictions with the sex of the persons: local." in document.sections["fairness"]
    assert [row[0] for row in document.tables["By sex"]] == ["method", "fedskd"]


def test_the_page_shows_it_where_predictions_show_the_sex(tmp_path):
    for sex in ((), ("male", "female", "")):
        folder = make_run(tmp_path / f"run{len(sex)}", "fedavg", sex=sex)
        document = Page(write_report([folder]).read_text())
        assert ("fairness" in document.sections) == bool(sex)
    assert "The sex is not known for 39 test images." in words(document.sections["fairness"])
    assert "3 of 3 classes" in words(document.sections["fairness"])
    assert json.loads((folder / "run.json").read_text())["identity"]["task"]["num_classes"] == 3
