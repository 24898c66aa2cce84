"""Test gains over folds: one row for each site, with the interval of the corrected t test."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
from make_runs import make_run
from read_page import Page, words
from run_records import change_json
from scipy import stats

from medfl.engine.runs.records import read_run
from medfl_report.groups import by_people, group_runs, repeated_word
from medfl_report.page import write_report
from medfl_report.predictions import read_prediction_sets
from medfl_report.sections.site_results import gains_section
from medfl_report.site_comparison import BETTER, NO_CLEAR_DIFFERENCE, WORSE

pytestmark = pytest.mark.usefixtures("undrawn")

BASE = (0.5, 0.55, 0.6)
"""Score of each fold at every site."""

STEPS = {"a": (0.10, 0.11, 0.12), "b": (0.1, -0.1, 0.3), "c": (0.2, 0.2, 0.2), "d": (0.25, None, 0.05)}
"""Site to what the second method gains in each fold; None where the score is not defined."""


def scores(fold, share):
    """The scores of a fold, with a share of the gains."""
    sites = {site: None if steps[fold] is None else BASE[fold] + share * steps[fold] for site, steps in STEPS.items()}
    return {"auc": sites}


@pytest.fixture
def folders(tmp_path):
    """Two methods of three folds."""
    return [
        make_run(
            tmp_path / f"{method}{fold}",
            method,
            fold=fold,
            folds=3,
            data=f"fold {fold}",
            sites=tuple(STEPS),
            images=4 + fold,
            metrics=("auc",),
            scores=scores(fold, share),
            skill=5 * share,
            state=False,
        )
        for method, share in (("local", 0), ("fedskd", 1))
        for fold in range(3)
    ]


def section(folders):
    records = [read_run(folder) for folder in folders]
    return gains_section(group_runs(records), {str(run.folder): read_prediction_sets(run) for run in records})


def corrected(differences, folds=3):
    """Mean and half the length of the interval of Nadeau and Bengio, from its definition."""
    share = 1 / len(differences) + 1 / (folds - 1)
    return fmean(differences), stats.t.ppf(0.975, len(differences) - 1) * stdev(differences) * math.sqrt(share)


def test_folds_make_one_comparison_with_the_corrected_interval(folders):
    content = section(folders)
    (against,) = content["comparisons"]
    rows = {row.name: row for row in against.metrics[0].lines}
    assert (against.label, content["several"]) == ("fedskd", "folds")
    for site in ("a", "b"):
        mean, half = corrected(STEPS[site])
        row = rows[site]
        assert (row.difference, row.low, row.high) == pytest.approx((mean, mean - half, mean + half))
        assert (row.alone, row.other) == pytest.approx((fmean(BASE), fmean(BASE) + mean))
        assert row.spread == pytest.approx(stdev(STEPS[site]))
    assert (rows["a"].effect, rows["b"].effect) == (BETTER, NO_CLEAR_DIFFERENCE)
    assert rows["a"].images == 4 + 5 + 6, "each fold tests other images"


def test_without_spread_there_is_no_interval(folders):
    (against,) = section(folders)["comparisons"]
    row = next(row for row in against.metrics[0].rows if row.name == "c")
    assert (row.difference, row.low) == (pytest.approx(0.2), None)
    assert row.effect == "no interval: the same in all runs"


def test_a_fold_without_a_score_is_left_out_of_both_means(folders):
    (against,) = section(folders)["comparisons"]
    row = next(row for row in against.metrics[0].rows if row.name == "d")
    mean, half = corrected((0.25, 0.05))
    assert (row.alone, row.difference, row.high) == pytest.approx((0.55, mean, mean + half))
    assert row.left == 1


def test_the_mean_of_sites_is_over_the_folds_too(folders):
    """The mean is taken first over the sites of a fold, then over the folds, like in the comparison's tables."""
    (against,) = section(folders)["comparisons"]
    each = [fmean(steps[fold] for steps in STEPS.values() if steps[fold] is not None) for fold in range(3)]
    mean, half = corrected(each)
    row = against.metrics[0].mean
    assert (row.difference, row.low, row.high) == pytest.approx((mean, mean - half, mean + half))
    assert row.other - row.alone == pytest.approx(mean)
    assert against.metrics[0].worst.alone == pytest.approx(0.55)


def test_a_loss_is_called_so(folders):
    swapped = [*folders[3:], *folders[:3]]
    swaps = {"local": "fedskd", "fedskd": "local"}
    for folder in swapped:
        change_json(folder / "run.json", lambda run: run["identity"].update(method=swaps[run["identity"]["method"]]))
    (against,) = section(swapped)["comparisons"]
    assert against.metrics[0].rows[0].effect == WORSE


def test_the_page_says_folds_and_shows_each_method_once(folders, tmp_path):
    document = Page(write_report(folders, tmp_path / "page.html").read_text())
    table = [[words(cell) for cell in row] for row in document.tables["fedskd against local, AUC"]]
    assert table[1][0] == "a 15 images"
    assert table[1][3].startswith("+0.110")
    assert table[1][3].endswith("SD over folds 0.010")
    assert table[4][3].endswith("not defined in 1 run")
    gains = words(document.sections["gains"])
    assert gains.count("fedskd compared with local training") == 1
    assert "3 sites with a test: 1 better, 1 no clear difference and 1 too few runs for a test." in gains
    assert "Nadeau and Bengio (2003)" in gains
    assert "seed" not in gains
    assert "mean over the sites and folds" in words(document.sections["curves"])
    assert "± is the standard deviation over the folds." in words(document.sections["scores"])


def test_without_a_run_alone_the_images_of_the_folds_are_counted_together(folders):
    (table,) = section(folders[3:])["plain"]
    assert [row[0].images for row in table["rows"]] == [15] * 4
    assert table["rows"][0][0].value == pytest.approx(fmean(BASE) + 0.11)


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        ([("local", 0, 0, "p"), ("local", 0, 1, "q"), ("fedskd", 0, 1, "q"), ("fedskd", 0, 2, "r")], {"": 2}),
        ([("local", 0, 0, "p"), ("fedskd", 0, 0, "x")], {"data p": 1, "data x": 1}),
        ([(m, s, f, f"{s}{f}") for m in ("local", "fedskd") for s in (0, 1) for f in (0, 1)],
         {"data of seed 0": 2, "data of seed 1": 2}),
        ([("local", 0, 0, "p"), ("local", 0, 1, "q"), ("fedskd", 0, 0, "x"), ("fedskd", 0, 1, "y")],
         {"folds of data p": 1, "folds of data x": 1}),
    ],
)  # fmt: skip
def test_groups_are_put_together_by_people(tmp_path, runs, parts):
    """Folds of a seed and runs on the same data have the same people; the same seed alone says nothing."""
    made = [
        read_run(make_run(tmp_path / str(n), method, seed, fold=fold, data=data, bundles=False, state=False))
        for n, (method, seed, fold, data) in enumerate(runs)
    ]
    assert {name: len(groups) for name, groups in by_people(group_runs(made)).items()} == parts


@pytest.mark.parametrize(
    ("runs", "word"),
    [([(0, None)], ""), ([(0, None), (1, None)], "seeds"), ([(0, 0), (0, 1)], "folds"), ([(0, 1), (1, 1)], "seeds"),
     ([(0, 0), (0, 1), (1, 0)], "runs")],
)  # fmt: skip
def test_what_a_group_repeats(tmp_path, runs, word):
    made = [
        read_run(make_run(tmp_path / str(n), seed=seed, fold=fold, bundles=False, state=False))
        for n, (seed, fold) in enumerate(runs)
    ]
    assert repeated_word(group_runs(made)) == word
