"""Minimum numbers of validation patients for each choice, with the reasons."""

from __future__ import annotations

import math

import numpy as np

from medfl.errors import DataError

EACH_GROUP = 10
"""Minimum number of patients with, and of patients without the class, for a threshold.

With fewer, a single patient moves the sensitivity or the specificity by more than 0.1.
"""

TEMPERATURE = 10
"""Minimum number of patients for a temperature, or the slope of a risk: one parameter is fitted."""

LINEAR = 20
"""Minimum number of patients for intercept and slope: ten for each parameter."""

ISOTONIC = 100
"""Minimum number of patients for an isotonic recalibration.

Its number of parameters grows with the data, and it overfits small sets (Niculescu-Mizil and Caruana 2005, Predicting
good probabilities with supervised learning, where it needs about 1,000 cases to beat a fit of two parameters).
"""

RISK_GROUPS = 10
"""Minimum number of patients for a median risk."""

ROUNDING = 1e-9
"""Relative difference up to which a number counts as an integer."""


def sensitivity_minimum(sensitivity: float) -> int:
    """Return the minimum number of patients with the class, for a threshold with a sensitivity of at least that value.

    With n patients the sensitivity has steps of 1 / n. Below 1 / (1 - sensitivity) patients, only a threshold that
    misses no one has that sensitivity, and the patient with the lowest probability alone decides it.

    Args:
        sensitivity: Sensitivity in (0, 1).
    """
    return max(EACH_GROUP, math.ceil(1 / (1 - sensitivity) * (1 - ROUNDING)))


def conformal_minimum(coverage: float, sides: int = 1) -> int:
    """Return the minimum number of patients for prediction sets of that coverage.

    A new patient ranks anywhere among n + 1 patients with equal probability, so n patients can exclude an error
    probability of 1 / (n + 1) and no less. With fewer patients every set would contain everything.

    Args:
        coverage: Coverage in (0, 1).
        sides: Number of sides, 1 or 2, among which the error probability is divided.
    """
    return math.ceil(sides / (1 - coverage) * (1 - ROUNDING)) - 1


def count_patients(patients: np.ndarray, chosen: np.ndarray | None = None) -> int:
    """Return the number of patients with at least one of the chosen images.

    Args:
        patients: Patient number of each image, (N,), int64.
        chosen: True for each chosen image, (N,), bool; None for all.
    """
    return len(np.unique(patients if chosen is None else patients[chosen]))


def require_patients(what: str, found_patients: int, minimum: int, reason: str, advice: str) -> None:
    """Raise if there are too few validation patients for a choice.

    Args:
        what: Choice, with the kind of the patients, such as ``a temperature needs validation patients``.
        found_patients: Number of patients.
        minimum: Minimum number of patients.
        reason: Reason for the minimum, as a clause.
        advice: Sentence that tells a user what to do.

    Raises:
        DataError: If there are fewer patients than the minimum (``too_few_patients``).
    """
    if found_patients < minimum:
        raise DataError(
            "too_few_patients",
            f"{what}: expected at least {minimum}, got {found_patients}, because {reason}. {advice}",
            choice=what,
            minimum=minimum,
            count=found_patients,
        )
