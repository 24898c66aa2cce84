"""Intervals against scipy, closed forms, and how often they hold the truth."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats

from medfl.metrics import METRICS
from medfl.objectives import Multiclass
from medfl_report.statistics import ROUNDING, Interval, mean_std, paired_bootstrap, paired_t, wilson


def bootstrap_by(name, a, b, labels, classes, **options):
    """The interval of the difference in a metric of classes."""
    return paired_bootstrap(partial(Multiclass(classes).weighted_score, name), a, b, labels, **options)


def guesses(rng, n, right):
    """Labels of two classes and probabilities of a model that is right in the given share of images."""
    labels = torch.from_numpy(rng.integers(2, size=n))
    return labels, model(rng, labels, right)


def model(rng, labels, right):
    predicted = torch.where(torch.from_numpy(rng.random(len(labels)) < right), labels, 1 - labels)
    return torch.nn.functional.one_hot(predicted, 2).double() * 0.8 + 0.1


# ---- bootstrap


@pytest.mark.parametrize("name", METRICS)
def test_a_model_does_not_differ_from_itself(name):
    labels, probabilities = guesses(np.random.default_rng(0), 60, 0.7)
    assert bootstrap_by(name, probabilities, probabilities, labels, 2, resamples=50) == Interval(0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", METRICS)
def test_the_difference_is_that_of_the_metric_and_turns_its_sign(name):
    rng = np.random.default_rng(1)
    labels, a = guesses(rng, 300, 0.7)
    b = model(rng, labels, 0.6)
    there = bootstrap_by(name, a, b, labels, 2, resamples=300)
    back = bootstrap_by(name, b, a, labels, 2, resamples=300)
    assert there.difference == pytest.approx(METRICS[name](a, labels, 2) - METRICS[name](b, labels, 2), abs=1e-12)
    assert (back.difference, back.low, back.high) == pytest.approx((-there.difference, -there.high, -there.low))
    assert there.low < there.difference < there.high


def test_the_seed_decides_the_draws():
    rng = np.random.default_rng(2)
    labels, a = guesses(rng, 200, 0.7)
    b = model(rng, labels, 0.6)
    first, again, other = (bootstrap_by("auc", a, b, labels, 2, seed=seed, resamples=400) for seed in (0, 0, 1))
    assert first == again
    assert first.difference == other.difference
    assert (first.low, first.high) != (other.low, other.high)


@pytest.mark.parametrize("name", METRICS)
def test_how_many_are_scored_at_once_changes_nothing(name, monkeypatch):
    labels, probabilities = guesses(np.random.default_rng(0), 60, 0.7)
    other = model(np.random.default_rng(1), labels, 0.8)
    together = bootstrap_by(name, probabilities, other, labels, 2, resamples=500)
    monkeypatch.setattr("medfl_report.statistics.weighted_scores.WEIGHTS", 1)
    assert bootstrap_by(name, probabilities, other, labels, 2, resamples=500) == together


def test_the_interval_of_accuracy_is_the_normal_one_for_many_images():
    """The difference of each image is -1, 0 or 1, so the standard error is known."""
    rng = np.random.default_rng(3)
    labels, a = guesses(rng, 3000, 0.8)
    b = model(rng, labels, 0.7)
    by_image = (a.argmax(1) == labels).double() - (b.argmax(1) == labels).double()
    error = float(by_image.std(correction=0)) / math.sqrt(3000)
    interval = bootstrap_by("accuracy", a, b, labels, 2, resamples=4000)
    assert interval.low == pytest.approx(interval.difference - 1.96 * error, abs=0.1 * error)
    assert interval.high == pytest.approx(interval.difference + 1.96 * error, abs=0.1 * error)


@pytest.mark.parametrize("name", ["accuracy", "auc", "balanced_accuracy"])
def test_the_interval_is_scipys_within_the_error_of_the_draws(name):
    """`scipy.stats.bootstrap` over the same images, and scikit-learn's metric by way of the tests of metrics."""
    rng = np.random.default_rng(7)
    labels, a = guesses(rng, 80, 0.8)
    b = model(rng, labels, 0.65)

    def difference(rows):
        return METRICS[name](a[rows], labels[rows], 2) - METRICS[name](b[rows], labels[rows], 2)

    theirs = stats.bootstrap(
        (np.arange(80),), difference, vectorized=False, method="percentile", n_resamples=1500, rng=rng
    ).confidence_interval
    ours = bootstrap_by(name, a, b, labels, 2)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_the_number_of_threads_is_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        labels, a = guesses(np.random.default_rng(0), 20, 0.8)
        bootstrap_by("accuracy", a, a, labels, 2, resamples=10)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_higher_level_is_a_wider_interval():
    rng = np.random.default_rng(4)
    labels, a = guesses(rng, 100, 0.8)
    b = model(rng, labels, 0.7)
    narrow, wide = (bootstrap_by("accuracy", a, b, labels, 2, level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_pairing_cancels_what_is_hard_for_both():
    """Two models that err on nearly the same images: unpaired, the interval would be many times wider."""
    rng = np.random.default_rng(5)
    labels, a = guesses(rng, 1000, 0.7)
    b = a.clone()
    b[:10] = b[:10].flip(1)
    interval = bootstrap_by("accuracy", a, b, labels, 2)
    alone = math.sqrt(2 * 0.7 * 0.3 / 1000) * 1.96
    assert (interval.high - interval.low) / 2 < alone / 4


def test_the_bootstrap_holds_the_truth_as_often_as_it_says():
    """200 test sets of 120 images: the true difference of accuracy, 0.1, is in about 95 % of the intervals."""
    rng, held = np.random.default_rng(6), 0
    for trial in range(200):
        labels, a = guesses(rng, 120, 0.8)
        interval = bootstrap_by("accuracy", a, model(rng, labels, 0.7), labels, 2, seed=trial, resamples=400)
        held += interval.low <= 0.1 <= interval.high
    assert stats.binomtest(held, 200, 0.95).pvalue > 0.01


def test_resamples_without_a_positive_are_left_out():
    labels = torch.tensor([0, 0, 0, 1])
    a, b = torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([0.1, 0.2, 0.9, 0.3])
    interval = bootstrap_by("auc", *(torch.stack([1 - p, p], 1) for p in (a, b)), labels, 2)
    assert interval == Interval(pytest.approx(1 / 3), 0.0, pytest.approx(1.0))


def test_what_is_not_defined_has_no_interval():
    labels, a = torch.zeros(4, dtype=torch.int64), torch.full((4, 2), 0.5)
    assert bootstrap_by("auc", a, a, labels, 2) is None
    assert bootstrap_by("accuracy", a, a * math.nan, labels, 2) is None
    assert bootstrap_by("accuracy", a[:0], a[:0], labels[:0], 2) is None


# ---- shares


@settings(max_examples=50, deadline=None, derandomize=True)
@given(some.integers(1, 500), some.floats(0, 1), some.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_is_scipys(n, share, level):
    correct = round(share * n)
    expected = stats.binomtest(correct, n).proportion_ci(level, method="wilson")
    assert wilson(correct, n, level) == pytest.approx((expected.low, expected.high), rel=0, abs=1e-15)


def test_wilson_at_the_edges():
    assert wilson(0, 10) == pytest.approx((0.0, 1.96**2 / (10 + 1.96**2)), abs=1e-4)
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


# ---- seeds


def test_mean_and_deviation():
    assert mean_std([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_std([0.5]) == (0.5, None)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(some.lists(some.floats(-1, 1), min_size=2, max_size=12), some.sampled_from([0.8, 0.95]))
def test_the_t_interval_is_scipys(differences, level):
    interval = paired_t(differences, level)
    if max(differences) - min(differences) <= ROUNDING:
        assert interval is None
        return
    expected = stats.ttest_1samp(differences, 0).confidence_interval(level)
    assert interval.difference == pytest.approx(np.mean(differences), abs=1e-12)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_t_interval_by_hand():
    interval = paired_t([0.1, 0.3])
    assert (interval.difference, interval.high) == pytest.approx((0.2, 0.2 + 12.7062 * 0.1), abs=1e-4)
    assert not interval.excludes_zero
    assert paired_t([0.1, 0.1]) is None, "no spread is no certainty"
    assert paired_t([0.1]) is None
    assert paired_t([]) is None


def test_an_interval_decides_if_0_lies_outside():
    assert [Interval(1, *ends).excludes_zero for ends in ((-1, 2), (0, 2), (1, 2), (-2, -1), (0, 0))] == [
        False,
        False,
        True,
        True,
        False,
    ]
