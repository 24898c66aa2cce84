"""Split conformal prediction: sets of classes and intervals of numbers with a guaranteed coverage of new patients.

The guarantee holds if validation and new patients are exchangeable: patients of the same population, chosen in the same
way, whose images had no influence on the model. A set contains the true value of a random image of a new patient with
at least the requested probability, over the draw of the validation patients and the new one.

N is the number of images, and K the number of values that a model predicts for an image.

Sources: Vovk, Gammerman and Shafer 2005, Algorithmic learning in a random world; sets of classes with the least average
size: Sadinle, Lei and Wasserman 2019, Least ambiguous set-valued classifiers with bounded error levels; patients with
several images: Lee, Barber and Willett 2023, Distribution-free inference with hierarchical data.
"""

from __future__ import annotations

import numpy as np

from medfl.records.calibration import ConformalInterval, ConformalSet
from medfl_report.calibration.minimum_patients import conformal_minimum, count_patients, require_patients

TOLERANCE = 1e-9
"""Rounding error of a sum of patients' weights."""


def conformal_quantile(scores: np.ndarray, patients: np.ndarray, coverage: float) -> float:
    """Return the smallest score with at least the weight `coverage` at or below it; infinity if there is none.

    Each of n patients has the weight 1 / (n + 1), divided equally among the patient's images; infinity has the rest.
    With one image for each patient it is the ceil((n + 1) x coverage)-th smallest score.

    Args:
        scores: Nonconformity score of each image, (N,); higher scores are less usual.
        patients: Patient number of each image, (N,), int64.
        coverage: Coverage in (0, 1).
    """
    _, places, counts = np.unique(patients, return_inverse=True, return_counts=True)
    weights = 1 / (len(counts) + 1) / counts[places]
    order = np.argsort(scores, kind="stable")
    reached = np.flatnonzero(np.cumsum(weights[order]) >= coverage - TOLERANCE)
    return float(scores[order[reached[0]]]) if len(reached) else float("inf")


def fit_conformal_set(
    probabilities: np.ndarray, labels: np.ndarray, patients: np.ndarray, coverage: float
) -> ConformalSet:
    """Choose the smallest probability of the classes in prediction sets.

    The score of an image is 1 - probability of its true class.

    Args:
        probabilities: The model's own class probabilities of the validation images, (N, K).
        labels: True classes, (N,), int64.
        patients: Patient number of each image, (N,), int64.
        coverage: Coverage in (0, 1).

    Raises:
        DataError: If there are too few patients (``too_few_patients``).
    """
    _require(patients, coverage, sides=1)
    own = probabilities[np.arange(len(labels)), labels]
    return ConformalSet(coverage=coverage, minimum=-conformal_quantile(-own, patients, coverage))


def fit_conformal_interval(
    predictions: np.ndarray, targets: np.ndarray, patients: np.ndarray, coverage: float
) -> ConformalInterval:
    """Choose the offsets of prediction intervals.

    Half of the error probability is on each side, so that the interval also corrects a model that is biased.

    Args:
        predictions: The model's own predictions for the validation images, (N, K).
        targets: True values, (N, K).
        patients: Patient number of each image, (N,), int64.
        coverage: Coverage in (0, 1).

    Raises:
        DataError: If there are too few patients (``too_few_patients``).
    """
    _require(patients, coverage, sides=2)
    errors, side = targets - predictions, (1 + coverage) / 2
    high = [conformal_quantile(error, patients, side) for error in errors.T]
    low = [-conformal_quantile(-error, patients, side) for error in errors.T]
    return ConformalInterval(coverage=coverage, low=tuple(low), high=tuple(high))


def _require(patients: np.ndarray, coverage: float, sides: int) -> None:
    """Raise if there are too few patients."""
    require_patients(
        "prediction sets need validation patients",
        count_patients(patients),
        conformal_minimum(coverage, sides),
        f"with fewer, only a set of all values has a coverage of {coverage:g}",
        "Use more validation images, a lower --coverage, or leave the sets out with --coverage 0.",
    )
