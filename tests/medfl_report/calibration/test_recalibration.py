"""Recalibration against scikit-learn, scipy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LinearRegression

from medfl.bundle.calibrated import scale_isotonic, scale_temperature
from medfl.errors import DataError
from medfl.objectives.losses import CoxLoss
from medfl_report.calibration.recalibration import (
    fit_isotonic,
    fit_isotonic_curve,
    fit_linear,
    fit_risk_slope,
    fit_temperature,
)

RNG = np.random.default_rng(5)
LOGITS = RNG.normal(size=(400, 4)) * 2
LABELS = np.array([RNG.choice(4, p=row) for row in softmax(LOGITS, axis=1)])
EACH = np.arange(400)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_temperature_minimises_the_log_loss(sharpness: float) -> None:
    probabilities = softmax(sharpness * LOGITS, axis=1)

    def loss(temperature: float) -> float:
        scaled = softmax(sharpness * LOGITS / temperature, axis=1)
        return float(-np.log(scaled[EACH, LABELS]).mean())

    found_by_scipy = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9}).x
    fitted = fit_temperature(probabilities, LABELS, EACH)
    assert fitted.temperature == pytest.approx(found_by_scipy, rel=1e-5)
    np.testing.assert_allclose(
        scale_temperature(probabilities, fitted.temperature), softmax(sharpness * LOGITS / fitted.temperature, axis=1)
    )


def test_a_temperature_only_undoes_a_wrong_sharpness() -> None:
    once, twice = (
        fit_temperature(softmax(sharpness * LOGITS, axis=1), LABELS, EACH).temperature for sharpness in (1, 2)
    )
    assert twice == pytest.approx(2 * once, rel=1e-9)
    scaled = scale_temperature(softmax(LOGITS, axis=1), 3.0)
    np.testing.assert_array_equal(scaled.argmax(axis=1), LOGITS.argmax(axis=1))
    np.testing.assert_allclose(scale_temperature(softmax(LOGITS, axis=1), 1.0), softmax(LOGITS, axis=1))


def test_there_is_no_best_temperature_of_a_perfect_or_useless_model() -> None:
    with refused(DataError, "no_recalibration", what="temperature"):
        fit_temperature(softmax(LOGITS, axis=1), LOGITS.argmax(axis=1), EACH)
    with refused(DataError, "no_recalibration", what="temperature"):
        fit_temperature(softmax(LOGITS, axis=1), LOGITS.argmin(axis=1), EACH)
    with refused(DataError, "no_recalibration", what="temperature"):
        fit_temperature(np.full((400, 4), 0.25), LABELS, EACH)
    with refused(DataError, "too_few_patients", minimum=10, count=8):
        fit_temperature(softmax(LOGITS, axis=1), LABELS, EACH // 50)


def test_isotonic_curves_are_those_of_scikit_learn() -> None:
    probabilities = np.round(RNG.random(400), 2)  # with ties
    present = RNG.random(400) < probabilities**2
    ours = fit_isotonic_curve(probabilities, present)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(probabilities, present)
    new = np.linspace(0, 1, 301)
    np.testing.assert_allclose(np.interp(new, ours.knots, ours.values), theirs.predict(new), atol=1e-12)
    assert len(ours.knots) <= len(theirs.X_thresholds_)
    assert np.all(np.diff(ours.values) >= 0)


def test_isotonic_recalibration_of_two_and_of_more_classes() -> None:
    probabilities = softmax(LOGITS, axis=1)
    scaling = fit_isotonic(probabilities, LABELS, EACH)
    scaled = scale_isotonic(probabilities, scaling)
    each = [
        IsotonicRegression(out_of_bounds="clip").fit_transform(probabilities[:, number], number == LABELS)
        for number in range(4)
    ]
    reference = np.stack(each, axis=1)
    np.testing.assert_allclose(scaled, reference / reference.sum(axis=1, keepdims=True), atol=1e-12)
    two = np.stack([1 - probabilities[:, 0], probabilities[:, 0]], axis=1)
    scaling = fit_isotonic(two, LABELS == 0, EACH)
    assert len(scaling.curves) == 1
    np.testing.assert_allclose(scale_isotonic(two, scaling)[:, 1], each[0], atol=1e-12)
    with refused(DataError, "too_few_patients", minimum=100, count=99):
        fit_isotonic(two[:99], LABELS[:99] == 0, EACH[:99])


def test_a_linear_map_is_least_squares() -> None:
    predictions = RNG.normal(size=(100, 2))
    targets = 3 + 2 * predictions + RNG.normal(size=(100, 2))
    scaling = fit_linear(predictions, targets, EACH[:100])
    for number in range(2):
        reference = LinearRegression().fit(predictions[:, [number]], targets[:, number])
        assert scaling.slopes[number] == pytest.approx(reference.coef_[0])
        assert scaling.intercepts[number] == pytest.approx(reference.intercept_)
    exact = fit_linear(predictions, 5 - 4 * predictions, EACH[:100])
    np.testing.assert_allclose([*exact.intercepts, *exact.slopes], [5, 5, -4, -4])
    with refused(DataError, "no_recalibration", what="slope"):
        fit_linear(np.ones((100, 2)), targets, EACH[:100])
    with refused(DataError, "too_few_patients", minimum=20, count=19):
        fit_linear(predictions[:19], targets[:19], EACH[:19])


def test_the_slope_of_a_risk_maximises_the_partial_likelihood() -> None:
    risks = RNG.normal(size=300)
    times = np.ceil(10 * RNG.exponential(np.exp(-2 * risks)))  # with ties
    targets = np.stack([np.minimum(times, 40), times < 40], axis=1)
    (slope,) = fit_risk_slope(risks, targets, EACH[:300]).slopes

    def loss(factor: float) -> float:
        return float(CoxLoss()(torch.from_numpy(factor * risks), torch.from_numpy(targets.astype(float))))

    assert slope == pytest.approx(minimize_scalar(loss, bounds=(0, 10), method="bounded").x, abs=1e-4)
    assert slope == pytest.approx(2, abs=0.4)
    (tenth,) = fit_risk_slope(10 * risks, targets, EACH[:300]).slopes
    assert tenth == pytest.approx(slope / 10, rel=1e-9)


def test_risks_without_a_best_slope() -> None:
    times = np.arange(1.0, 31)
    targets = np.stack([times, np.ones(30)], axis=1)
    for risks in (-times, times, np.zeros(30)):  # in order, in reverse, without order
        with refused(DataError, "no_recalibration", what="slope"):
            fit_risk_slope(risks, targets, EACH[:30])
    with refused(DataError, "too_few_patients", minimum=10, count=9):
        fit_risk_slope(times, np.stack([times, times < 10], axis=1), EACH[:30])
