"""Recalibration, fitted on validation images: temperature, isotonic regression, linear map, slope of a risk.

N is the number of images, and K the number of values that a model predicts for an image.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import brentq, isotonic_regression

from medfl.bundle.calibrated import TINY
from medfl.errors import DataError
from medfl.objectives.losses import CoxLoss
from medfl.records.calibration import IsotonicCurve, IsotonicScaling, LinearScaling, TemperatureScaling
from medfl_report.calibration.minimum_patients import ISOTONIC, LINEAR, TEMPERATURE, count_patients, require_patients

LARGEST_SCALE = 2.0**20
"""Largest factor of logits or standardised risks that is searched."""

ROUNDING = 1e-9
"""Relative rounding error of a slope."""

NO_RECALIBRATION = "Use more validation images, or keep the model's own predictions with --recalibrate none."
"""Advice of errors about a recalibration."""


def fit_temperature(probabilities: np.ndarray, labels: np.ndarray, patients: np.ndarray) -> TemperatureScaling:
    """Fit the temperature with the lowest mean negative log likelihood.

    With the inverse temperature b and logits z = log p, the loss is convex in b, and its slope at b is the mean
    difference between the expected and the true logit. A finite b > 0 exists if the model is better than a random order
    (the slope is < 0 at b = 0) and not right for every image.

    Source: Guo et al. 2017, On calibration of modern neural networks.

    Args:
        probabilities: Class probabilities of the validation images, (N, K).
        labels: True classes, (N,), int64.
        patients: Patient number of each image, (N,), int64.

    Raises:
        DataError: If there are too few patients (``too_few_patients``) or no best temperature
            (``no_recalibration``).
    """
    reason = "with fewer, the temperature follows single patients"
    require_patients(
        "a temperature needs validation patients", count_patients(patients), TEMPERATURE, reason, NO_RECALIBRATION
    )
    logits = np.log(np.maximum(probabilities, TINY))
    logits = logits - logits.max(axis=1, keepdims=True)
    true = logits[np.arange(len(labels)), labels]

    def slope(inverse: float) -> float:
        powers = np.exp(inverse * logits)
        return float(np.mean((powers * logits).sum(axis=1) / powers.sum(axis=1) - true))

    inverse = _root(slope, 1.0)
    if inverse is None:
        order = "no better than a random order of the classes" if slope(0) >= 0 else "right for every one of them"
        raise _no_fit("temperature", f"the model is {order}", len(labels))
    return TemperatureScaling(temperature=1 / inverse)


def fit_isotonic(probabilities: np.ndarray, labels: np.ndarray, patients: np.ndarray) -> IsotonicScaling:
    """Fit isotonic regressions of the classes on their probabilities; for two classes of the second class only.

    Source: Zadrozny and Elkan 2002, Transforming classifier scores into accurate multiclass probability estimates.

    Args:
        probabilities: Class probabilities of the validation images, (N, K).
        labels: True classes, (N,), int64.
        patients: Patient number of each image, (N,), int64.

    Raises:
        DataError: If there are too few patients (``too_few_patients``).
    """
    require_patients(
        "an isotonic recalibration needs validation patients",
        count_patients(patients),
        ISOTONIC,
        "it has as many parameters as steps and overfits small sets",
        "Use --recalibrate temperature.",
    )
    classes = [1] if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    curves = (fit_isotonic_curve(probabilities[:, number], labels == number) for number in classes)
    return IsotonicScaling(curves=tuple(curves))


def fit_isotonic_curve(probabilities: np.ndarray, present: np.ndarray) -> IsotonicCurve:
    """Fit the isotonic regression of one class by pooling adjacent violators.

    Images of equal probability are averaged first. Of a run of equal values only both ends become knots.

    Args:
        probabilities: Probabilities of the class, (N,), N >= 1.
        present: True for each image of the class, (N,), bool.
    """
    knots, places, counts = np.unique(probabilities, return_inverse=True, return_counts=True)
    shares = np.bincount(places, weights=present.astype(np.float64)) / counts
    values = np.clip(isotonic_regression(shares, weights=counts.astype(np.float64)).x, 0.0, 1.0)
    is_kept = np.ones(len(knots), dtype=bool)
    is_kept[1:-1] = (values[1:-1] != values[:-2]) | (values[1:-1] != values[2:])
    return IsotonicCurve(knots=tuple(knots[is_kept].tolist()), values=tuple(values[is_kept].tolist()))


def fit_linear(predictions: np.ndarray, targets: np.ndarray, patients: np.ndarray) -> LinearScaling:
    """Fit target = intercept + slope x prediction by least squares, for each of K numbers.

    Source: Cox 1958, Two further applications of a model for binary regression; for numbers, Steyerberg 2019, Clinical
    prediction models, chapter 15 (calibration intercept and slope).

    Args:
        predictions: Predictions for the validation images, (N, K).
        targets: True values, (N, K).
        patients: Patient number of each image, (N,), int64.

    Raises:
        DataError: If there are too few patients (``too_few_patients``), or all predictions of a number are equal
            (``no_recalibration``).
    """
    require_patients(
        "a linear recalibration needs validation patients",
        count_patients(patients),
        LINEAR,
        "intercept and slope need about ten patients each",
        NO_RECALIBRATION,
    )
    centred = predictions - predictions.mean(axis=0)
    spread = (centred**2).sum(axis=0)
    if not spread.all():
        raise _no_fit("slope", "the model predicts the same number for every one of them", len(targets))
    slopes = (centred * targets).sum(axis=0) / spread
    intercepts = targets.mean(axis=0) - slopes * predictions.mean(axis=0)
    return LinearScaling(intercepts=tuple(intercepts.tolist()), slopes=tuple(slopes.tolist()))


def fit_risk_slope(risks: np.ndarray, times_and_events: np.ndarray, patients: np.ndarray) -> LinearScaling:
    """Fit the slope of a log risk by Cox's partial likelihood, with Efron's treatment of ties.

    A recalibrated difference of d between two patients means a hazard ratio of exp(d).

    Source: van Houwelingen 2000, Validation, calibration, revision and combination of prognostic survival models.

    Args:
        risks: Predicted risks of the validation images, (N,).
        times_and_events: Time > 0, and 1 for an event or 0 for a censored time, (N, 2).
        patients: Patient number of each image, (N,), int64.

    Raises:
        DataError: If too few patients have an event (``too_few_patients``), or there is no best slope > 0
            (``no_recalibration``).
    """
    require_patients(
        "the slope of a risk needs validation patients with an event",
        count_patients(patients, times_and_events[:, 1] == 1),
        TEMPERATURE,
        "the partial likelihood has one term for each event",
        NO_RECALIBRATION,
    )
    spread = float(np.std(risks))
    loss, targets = CoxLoss(), torch.from_numpy(times_and_events.astype(np.float64))
    standard = torch.from_numpy(risks.astype(np.float64)) / (spread or 1.0)

    def slope(factor: float) -> float:
        scale = torch.tensor(factor, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(scale * standard, targets), scale)
        return float(gradient)

    factor = _root(slope, 1.0) if spread else None
    if factor is None:
        order = "all events in the order of their times" if spread and slope(0) < 0 else "risks without any order"
        raise _no_fit("slope", f"the model predicts {order}", len(risks))
    return LinearScaling(intercepts=(0.0,), slopes=(factor / spread,))


def _root(slope: Callable[[float], float], start: float) -> float | None:
    """Return the root > 0 of an increasing function; None if it is >= 0 at 0, or not above 0 up to `LARGEST_SCALE`.

    Positive values up to `ROUNDING` times the value at 0 count as rounding errors of a function that only approaches 0.
    """
    first = slope(0.0)
    if first >= 0:
        return None
    high = start
    while slope(high) <= ROUNDING * -first:
        high *= 2
        if high > LARGEST_SCALE:
            return None
    return float(brentq(slope, 0.0, high, xtol=1e-12 * high, rtol=1e-12))


def _no_fit(what: str, reason: str, images: int) -> DataError:
    return DataError(
        "no_recalibration",
        f"no {what} fits the {images} validation images best: {reason}. {NO_RECALIBRATION}",
        what=what,
        reason=reason,
        count=images,
    )
