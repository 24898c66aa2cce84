"""Conformal prediction: the guarantee by enumeration, closed forms, patients with several images."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from refusals import refused

from medfl.bundle.calibrated import conformal_classes, conformal_ends
from medfl.errors import DataError
from medfl_report.calibration.conformal import conformal_quantile, fit_conformal_interval, fit_conformal_set


@pytest.mark.parametrize("coverage", [0.5, 0.75, 0.8])
@pytest.mark.parametrize("ties", [False, True])
def test_the_coverage_is_guaranteed_for_every_order_of_the_patients(coverage: float, ties: bool) -> None:
    scores = np.array([0.1, 0.4, 0.4, 0.4, 0.9, 1.2] if ties else [0.1, 0.2, 0.4, 0.5, 0.9, 1.2])
    hits = [
        scores[order[-1]] <= conformal_quantile(scores[list(order[:-1])], np.arange(5), coverage)
        for order in permutations(range(6))
    ]
    assert np.mean(hits) >= coverage - 1e-12
    if not ties:
        assert np.mean(hits) == pytest.approx(np.ceil(6 * coverage) / 6)  # at most 1 / (n + 1) more than requested


@pytest.mark.parametrize("coverage", [0.5, 0.75])
def test_the_coverage_is_guaranteed_for_patients_with_several_images(coverage: float) -> None:
    """Enumerate the new patient, one of the patient's images, and which scores are high."""
    sizes = [1, 3, 1, 2]
    shifts = [0.0, 5.0, 1.0, 0.5]  # the images of a patient are alike
    images = [[shift + 0.1 * number for number in range(size)] for size, shift in zip(sizes, shifts, strict=True)]
    covered = []
    for new in range(4):
        others = [number for number in range(4) if number != new]
        scores = np.concatenate([images[number] for number in others])
        patients = np.concatenate([[number] * sizes[number] for number in others])
        limit = conformal_quantile(scores, patients, coverage)
        covered.append(np.mean([score <= limit for score in images[new]]))
    assert np.mean(covered) >= coverage - 1e-12


def test_the_quantile_is_an_order_statistic() -> None:
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 20))
    for coverage in (0.5, 0.8, 0.9, 0.95):
        assert conformal_quantile(scores, np.arange(19), coverage) == np.ceil(20 * coverage - 1e-9)
    assert conformal_quantile(scores, np.arange(19), 0.96) == np.inf
    assert conformal_quantile(scores[:8], np.arange(8), 0.9) == np.inf  # 9 patients are needed


def test_copies_of_an_image_change_nothing() -> None:
    scores = np.random.default_rng(1).random(30)
    patients = np.arange(30)
    counts = np.random.default_rng(2).integers(1, 5, size=30)
    for coverage in (0.5, 0.9):
        expected = conformal_quantile(scores, patients, coverage)
        assert conformal_quantile(np.repeat(scores, counts), np.repeat(patients, counts), coverage) == expected


def test_every_pattern_of_two_classes_is_covered() -> None:
    """Enumerate all labels of ten exchangeable cases: sets cover the left-out one as often as requested."""
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]])
    for labels in map(np.array, product([0, 1], repeat=5)):
        hits = 0
        for left in range(5):
            rest = np.delete(np.arange(5), left)
            sets = fit_conformal_set(probabilities[rest], labels[rest], np.arange(4), 0.8)
            hits += conformal_classes(sets, probabilities[[left]])[0, labels[left]]
        assert hits >= 4


def test_a_set_always_has_the_most_probable_class() -> None:
    probabilities = np.tile([0.97, 0.02, 0.01], (20, 1))
    sets = fit_conformal_set(probabilities, np.zeros(20, dtype=int), np.arange(20), 0.9)
    assert sets.minimum == 0.97
    inside = conformal_classes(sets, np.array([[0.5, 0.3, 0.2], [0.98, 0.01, 0.01]]))
    np.testing.assert_array_equal(inside, [[True, False, False], [True, False, False]])


def test_intervals_correct_a_bias_and_have_a_closed_form() -> None:
    errors = np.arange(1.0, 40)  # target - prediction: 1 to 39
    interval = fit_conformal_interval(np.zeros((39, 1)), errors[:, np.newaxis], np.arange(39), 0.9)
    assert (interval.low, interval.high) == ((2.0,), (38.0,))  # ranks 2 and 38 of 40
    low, high = conformal_ends(interval, np.array([[10.0]]))
    assert (float(low[0, 0]), float(high[0, 0])) == (12.0, 48.0)
    covered = []
    for left in range(39):
        rest = np.delete(errors, left)[:, np.newaxis]
        part = fit_conformal_interval(np.zeros((38, 1)), rest, np.arange(38), 0.9)
        covered.append(part.low[0] <= errors[left] <= part.high[0])
    assert np.mean(covered) >= 0.9


def test_too_few_patients_are_refused_with_the_minimum() -> None:
    probabilities, labels = np.tile([0.7, 0.3], (16, 1)), np.zeros(16, dtype=int)
    with refused(DataError, "too_few_patients", minimum=9, count=8):
        fit_conformal_set(probabilities, labels, np.arange(16) // 2, 0.9)
    with refused(DataError, "too_few_patients", minimum=19, count=16):
        fit_conformal_interval(np.zeros((16, 1)), np.ones((16, 1)), np.arange(16), 0.9)
    fit_conformal_set(probabilities[:9], labels[:9], np.arange(9), 0.9)
