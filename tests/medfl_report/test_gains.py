"""Alone against together: differences, their intervals, and the words for them."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest
import torch
from make_runs import make_run
from refusals import refused
from scipy import stats
from sklearn.metrics import balanced_accuracy_score

from medfl.engine.runs.records import read_run
from medfl.errors import StoreError
from medfl_report.groups import Group, group_runs
from medfl_report.predictions import read_prediction_sets
from medfl_report.site_comparison import (
    BETTER,
    NO_CLEAR_DIFFERENCE,
    WORSE,
    ComparisonRow,
    compare_sites,
    mean_interval,
    pair_up,
    worst_row,
)
from medfl_report.statistics import Interval


def compare(runs, metric="accuracy"):
    """The comparison of the second method of `runs` with the first."""
    alone, other = group_runs([read_run(run) for run in runs])
    pairs = pair_up(alone, other)
    tested = {str(run.folder): read_prediction_sets(run) for run in (*alone.runs, *other.runs)}
    return compare_sites(metric, other.label, pairs, tested)


def rewrite(run, site, labels=None, probabilities=None):
    """Give a site other predictions in a run folder."""
    path = run / "sites" / site / "predictions.csv"
    lines = path.read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    for index, row in enumerate(rows):
        row[1] = str(labels[index]) if labels is not None else row[1]
        row[2:] = [str(value) for value in probabilities[index]] if probabilities is not None else row[2:]
    path.write_text("\n".join([lines[0], *map(",".join, rows)]) + "\n")


def test_a_run_against_its_like_has_no_difference(tmp_path):
    scores = {"accuracy": {f"site-{n}": 0.5 for n in (1, 2, 3)}}
    runs = [make_run(tmp_path / name, name, images=20, scores=scores) for name in ("local", "fedavg")]
    for site in ("site-1", "site-2", "site-3"):
        (runs[1] / "sites" / site / "predictions.csv").write_bytes(
            (runs[0] / "sites" / site / "predictions.csv").read_bytes()
        )
    comparison = compare(runs)
    for row in (*comparison.rows, comparison.mean):
        assert (row.difference, row.low, row.high, row.effect) == (0, 0, 0, NO_CLEAR_DIFFERENCE)
    assert comparison.reach == 0.1


def test_differences_are_those_of_the_scores(tmp_path):
    runs = [make_run(tmp_path / name, name, skill=skill, metrics=("accuracy", "balanced_accuracy"))
            for name, skill in (("local", 0.5), ("fedavg", 2.0))]  # fmt: skip
    comparison = compare(runs, "balanced_accuracy")
    wanted = []
    for row in comparison.rows:
        before, after = (read_prediction_sets(read_run(run))[row.name] for run in runs)
        before_score, two = (balanced_accuracy_score(t.targets, t.predictions.argmax(1)) for t in (before, after))
        assert row.alone == pytest.approx(before_score)
        assert row.other == pytest.approx(two)
        assert row.difference == pytest.approx(two - before_score)
        assert row.low <= row.difference <= row.high
        assert row.images == 40
        wanted.append(two - before_score)
    assert comparison.mean.difference == pytest.approx(fmean(wanted))
    assert comparison.worst.alone == pytest.approx(min(row.alone for row in comparison.rows))
    assert comparison.worst.other == pytest.approx(min(row.other for row in comparison.rows))
    assert comparison.worst.low is None


@pytest.mark.parametrize(("metric", "effect"), [("accuracy", BETTER), ("ece", WORSE)])
def test_more_is_a_gain_but_of_an_error(tmp_path, metric, effect):
    """The other model is always right and always says one half: more accurate, and a larger calibration error."""
    runs = [make_run(tmp_path / name, name, metrics=(metric,), sites=["site-1"]) for name in ("local", "fedavg")]
    labels = read_prediction_sets(read_run(runs[0]))["site-1"].targets
    sure = torch.nn.functional.one_hot((labels + 1) % 3, 3).double()
    right = torch.full((40, 3), 0.25, dtype=torch.float64).scatter(1, labels[:, None], 0.5)
    wrong = sure if metric == "accuracy" else torch.nn.functional.one_hot(labels, 3).double()
    rewrite(runs[0], "site-1", probabilities=wrong.tolist())
    rewrite(runs[1], "site-1", probabilities=right.tolist())
    comparison = compare(runs, metric)
    assert comparison.rows[0].difference == pytest.approx(1.0 if metric == "accuracy" else 0.5)
    assert comparison.rows[0].effect == effect
    assert comparison.count(effect) == 1


def test_seeds_are_averaged_and_their_spread_is_reported(tmp_path):
    runs = [
        make_run(tmp_path / f"{name}{seed}", name, seed, skill=skill, images=80)
        for seed in range(3)
        for name, skill in (("local", 0.5), ("fedavg", 1.0))
    ]
    together = compare(runs)
    single = [compare(runs[2 * seed : 2 * seed + 2]) for seed in range(3)]
    for index, row in enumerate(together.rows):
        parts = [comparison.rows[index] for comparison in single]
        assert row.difference == pytest.approx(fmean(part.difference for part in parts))
        differences = [part.difference for part in parts]
        assert row.spread == pytest.approx(stdev(differences))
        ends = stats.ttest_1samp(differences, 0).confidence_interval()
        assert row.low < ends.low < ends.high < row.high, "the interval is over the patients as well"
    assert together.mean.spread == pytest.approx(stdev(comparison.mean.difference for comparison in single))
    assert single[0].mean.spread is None


def test_seeds_that_disagree_leave_it_open(tmp_path):
    """Two seeds gain all, the third loses a little: the interval over the seeds contains 0."""
    runs = []
    for seed in range(3):
        pair = [make_run(tmp_path / f"{m}{seed}", m, seed, sites=["site-1"], images=100) for m in ("local", "fedavg")]
        labels = read_prediction_sets(read_run(pair[0]))["site-1"].targets
        right, wrong = (torch.nn.functional.one_hot((labels + k) % 3, 3).double() for k in (0, 1))
        nearly = right.clone()
        nearly[0] = wrong[0]
        for run, probabilities in zip(pair, (wrong, right) if seed < 2 else (right, nearly), strict=True):
            rewrite(run, "site-1", probabilities=probabilities.tolist())
        runs += pair
    row = compare(runs).rows[0]
    assert row.low < 0 < row.difference
    assert row.effect == NO_CLEAR_DIFFERENCE


def test_the_interval_of_a_mean_of_alike_sites_shrinks_with_the_root_of_their_number():
    interval = mean_interval([Interval(0.1, 0.0, 0.3)] * 4)
    assert (interval.difference, interval.low, interval.high) == pytest.approx((0.1, 0.05, 0.2))
    interval = mean_interval([Interval(0.2, -0.1, 0.4)])
    assert (interval.difference, interval.low, interval.high) == pytest.approx((0.2, -0.1, 0.4))


def test_runs_are_paired_on_the_same_data_only_and_by_seed_first(tmp_path):
    def group(method, *facts):
        folders = [make_run(tmp_path / f"{method}{i}", method, seed, data=data) for i, (seed, data) in enumerate(facts)]
        return Group(method, tuple(read_run(folder) for folder in folders))

    alone = group("local", (0, "a"), (1, "a"))
    other = group("fedavg", (0, "b"), (1, "a"), (7, "a"))
    assert [(pair.other.seed, pair.alone.seed) for pair in pair_up(alone, other)] == [(1, 1), (7, 0)]


@pytest.mark.parametrize(
    ("mend", "effect"),
    [
        (lambda run: rewrite(run, "site-1", labels=[0] * 40), "no interval: other test images"),
        (lambda run: rewrite(run, "site-1", probabilities=[["nan"] * 3] * 40), "no interval: a model gives no numbers"),
        (lambda run: (run / "sites/site-1/predictions.csv").unlink(), "no interval: no predictions"),
    ],
)
def test_a_row_says_why_it_has_no_interval(tmp_path, mend, effect):
    runs = [make_run(tmp_path / name, name) for name in ("local", "fedavg")]
    mend(runs[1])
    comparison = compare(runs)
    assert comparison.rows[0].effect == effect
    assert comparison.rows[0].low is None
    assert comparison.rows[1].low is not None
    assert (comparison.mean.low, comparison.mean.effect) == (None, "no test at every site")


def test_a_site_without_test_images_is_no_part_of_the_mean(tmp_path):
    runs = []
    for name in ("local", "fedavg"):
        scores = {"accuracy": {"site-1": None, "site-2": 0.5, "site-3": 0.75}}
        runs.append(make_run(tmp_path / name, name, scores=scores))
        (runs[-1] / "sites/site-1/predictions.csv").unlink()
    comparison = compare(runs)
    assert comparison.rows[0].effect == "no test images"
    assert (comparison.mean.alone, comparison.worst.alone) == (0.625, 0.5)
    assert comparison.mean.low is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row,label\n0,1\n", "expected the columns row, label, p0, p1, p2"),
        ("row,label,p0,p1,p2\n0,9,1,0,0\n", "expected labels in [0, 3)"),
        ("row,label,p0,p1,p2\n0,1,1,0,no\n", "could not convert string to float"),
    ],
)
def test_damaged_predictions_are_named(tmp_path, text, message):
    run = make_run(tmp_path / "local", "local")
    (run / "sites/site-2/predictions.csv").write_text(text)
    with refused(StoreError, "unreadable_file", path=str(run / "sites/site-2/predictions.csv")) as error:
        read_prediction_sets(read_run(run))
    assert message in str(error.value)
    assert "Give the command of that run again" in str(error.value)


def test_the_picture_reaches_to_the_next_round_number(tmp_path):
    runs = [make_run(tmp_path / name, name, skill=skill) for name, skill in (("local", 0.2), ("fedavg", 3.0))]
    comparison = compare(runs)
    far = max(abs(end) for row in (*comparison.rows, comparison.mean) for end in (row.low, row.high))
    assert far <= comparison.reach <= 1.5 * far
    assert math.isclose(comparison.reach * 20, round(comparison.reach * 20))


@pytest.mark.parametrize(("metric", "alone", "other"), [("accuracy", 0.5, 0.7), ("ece", 0.9, 0.8)])
def test_the_worst_site_of_either_side_gains_other_minus_alone(metric, alone, other):
    rows = [ComparisonRow("a", 5, 0.5, 0.8), ComparisonRow("b", 5, 0.9, 0.7), ComparisonRow("c", 5, None, 0.1)]
    worst = worst_row(metric, rows)
    assert (worst.alone, worst.other, worst.difference) == (alone, other, pytest.approx(other - alone))
