"""Decision curves: the definition, references, and the optimum of calibrated probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from medfl_report.calibration.decision_curve import net_benefit, net_benefit_of_all

THRESHOLDS = np.arange(1, 100) / 100
PROBABILITIES = np.round(np.random.default_rng(0).random(500), 2)
PRESENT = np.random.default_rng(1).random(500) < PROBABILITIES


def test_net_benefit_is_its_definition() -> None:
    for threshold, benefit in zip(THRESHOLDS, net_benefit(PROBABILITIES, PRESENT, THRESHOLDS), strict=True):
        positive = threshold <= PROBABILITIES
        hits, alarms = (positive & PRESENT).sum() / 500, (positive & ~PRESENT).sum() / 500
        assert benefit == pytest.approx(hits - alarms * threshold / (1 - threshold))


def test_the_references_are_constant_models() -> None:
    np.testing.assert_allclose(
        net_benefit(np.ones(500), PRESENT, THRESHOLDS), net_benefit_of_all(PRESENT, THRESHOLDS), atol=1e-12
    )
    np.testing.assert_array_equal(net_benefit(np.zeros(500), PRESENT, THRESHOLDS), 0)
    prevalence = PRESENT.mean()
    assert net_benefit_of_all(PRESENT, np.array([prevalence]))[0] == pytest.approx(0)


def test_a_perfect_model_has_the_prevalence_as_benefit() -> None:
    np.testing.assert_allclose(net_benefit(PRESENT * 1.0, PRESENT, THRESHOLDS), PRESENT.mean())


def test_a_known_example() -> None:
    """Ten cases: at 0.2 there are 2 true and 2 false positives: 2/10 - 2/10 x 0.25 = 0.15."""
    probabilities = np.array([0.9, 0.3, 0.1, 0.5, 0.2, 0.1, 0.1, 0.05, 0.0, 0.0])
    present = np.array([True, True, True] + [False] * 7)
    assert net_benefit(probabilities, present, np.array([0.2]))[0] == pytest.approx(0.15)
