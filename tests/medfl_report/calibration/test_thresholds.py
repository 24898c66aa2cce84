"""Thresholds: exhaustive search, closed forms, degenerate data, and too few patients."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused
from sklearn.metrics import roc_curve

from medfl.errors import DataError, SettingsError
from medfl_report.calibration.minimum_patients import conformal_minimum, sensitivity_minimum
from medfl_report.calibration.thresholds import (
    ThresholdRule,
    candidate_thresholds,
    choose_threshold,
    operating_points,
)

RNG = np.random.default_rng(3)
PRESENT = RNG.random(200) < 0.3
PROBABILITIES = np.round(1 / (1 + np.exp(-(RNG.normal(size=200) + 1.5 * PRESENT - 1))), 2)  # with ties
EACH = np.arange(200)


def rates(threshold: float) -> tuple[float, float]:
    positive = threshold <= PROBABILITIES
    return float(positive[PRESENT].mean()), float((~positive[~PRESENT]).mean())


def test_operating_points_are_those_of_the_roc_curve() -> None:
    thresholds = candidate_thresholds(PROBABILITIES)
    sensitivity, specificity = operating_points(PROBABILITIES, PRESENT, thresholds)
    false_positive, true_positive, _ = roc_curve(PRESENT, PROBABILITIES, drop_intermediate=False)
    np.testing.assert_allclose(sensitivity[::-1], true_positive[1:])  # sklearn adds the point of no positive case
    np.testing.assert_allclose(1 - specificity[::-1], false_positive[1:])
    np.testing.assert_allclose([rates(value) for value in thresholds], np.stack([sensitivity, specificity], axis=1))


@pytest.mark.parametrize("minimum", [0.5, 0.8, 0.9, 0.95])
def test_the_highest_threshold_with_the_sensitivity_is_chosen(minimum: float) -> None:
    chosen = choose_threshold(PROBABILITIES, PRESENT, EACH, ThresholdRule("sensitivity", minimum), 1)
    enough = [value for value in np.unique(PROBABILITIES) if rates(value)[0] >= minimum]
    assert rates(chosen.threshold) == rates(max(enough))
    assert (chosen.sensitivity, chosen.specificity) == pytest.approx(rates(chosen.threshold))
    assert chosen.sensitivity >= minimum


def test_youden_and_costs_are_searched_exhaustively() -> None:
    distinct = np.unique(PROBABILITIES)
    chosen = choose_threshold(PROBABILITIES, PRESENT, EACH, ThresholdRule("youden"), 1)
    assert sum(rates(chosen.threshold)) == pytest.approx(max(sum(rates(value)) for value in distinct))
    for cost in (0.2, 1.0, 10.0, 1e6):
        chosen = choose_threshold(PROBABILITIES, PRESENT, EACH, ThresholdRule("cost", None, cost), 1)

        def total(threshold: float, cost: float = cost) -> float:
            sensitivity, specificity = rates(threshold)
            return cost * (1 - sensitivity) * PRESENT.sum() + (1 - specificity) * (~PRESENT).sum()

        assert total(chosen.threshold) == pytest.approx(min(total(value) for value in distinct))
    assert chosen.sensitivity == 1  # a miss that costs a million


def test_a_perfect_model_has_a_perfect_threshold() -> None:
    probabilities = np.where(PRESENT, 0.8, 0.3)
    for rule in (ThresholdRule("youden"), ThresholdRule("sensitivity", 0.9), ThresholdRule("cost", None, 2.0)):
        chosen = choose_threshold(probabilities, PRESENT, EACH, rule, 1)
        assert (chosen.sensitivity, chosen.specificity) == (1, 1)
        assert chosen.threshold == pytest.approx(0.55)


def test_a_constant_model_calls_every_case_positive() -> None:
    chosen = choose_threshold(np.full(200, 0.4), PRESENT, EACH, ThresholdRule("youden"), 1)
    assert (chosen.threshold, chosen.sensitivity, chosen.specificity) == (0.2, 1, 0)


def test_the_minimum_follows_from_the_steps_of_a_sensitivity() -> None:
    assert [sensitivity_minimum(value) for value in (0.5, 0.9, 0.95, 0.99)] == [10, 10, 20, 100]
    assert [conformal_minimum(value) for value in (0.8, 0.9, 0.95)] == [4, 9, 19]
    assert [conformal_minimum(value, sides=2) for value in (0.8, 0.9, 0.95)] == [9, 19, 39]


def test_too_few_patients_are_refused_with_the_minimum() -> None:
    present = np.arange(200) < 19
    with refused(DataError, "too_few_patients", minimum=20, count=19):
        choose_threshold(PROBABILITIES, present, EACH, ThresholdRule("sensitivity", 0.95), 1)
    with refused(DataError, "too_few_patients", minimum=10, count=5):
        choose_threshold(PROBABILITIES, ~present, EACH // 4, ThresholdRule("youden"), 1)  # 19 images of five patients
    choose_threshold(PROBABILITIES, present, EACH, ThresholdRule("sensitivity", 0.9), 1)


def test_a_rule_takes_its_own_value_only() -> None:
    with refused(SettingsError, "conflicting_settings", rule="youden"):
        ThresholdRule("youden", 0.9)
    with refused(SettingsError, "conflicting_settings", rule="sensitivity"):
        ThresholdRule("sensitivity")
    with refused(SettingsError, "setting_out_of_range", setting="sensitivity", found=1.0):
        ThresholdRule("sensitivity", 1.0)
    with refused(SettingsError, "setting_out_of_range", setting="cost_false_negative", found=0.0):
        ThresholdRule("cost", None, 0.0)
