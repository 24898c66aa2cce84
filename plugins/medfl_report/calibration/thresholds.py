"""Choice of the probability at and above which a case is assigned to a class.

N is the number of images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medfl.errors import SettingsError
from medfl.records.calibration import DecisionThreshold, Rule
from medfl_report.calibration.minimum_patients import (
    EACH_GROUP,
    count_patients,
    require_patients,
    sensitivity_minimum,
)

TOLERANCE = 1e-12
"""Difference up to which two sensitivities or costs are equal."""


@dataclass(frozen=True)
class ThresholdRule:
    """Rule by which a threshold is chosen.

    ``sensitivity``: the highest threshold with at least `minimum_sensitivity`. ``youden``: the largest sum of
    sensitivity and specificity (Youden 1950, Index for rating diagnostic tests). ``cost``: the lowest total cost, where
    a false positive costs 1 and a false negative `cost_false_negative`. Of equally good thresholds the lowest is taken.

    Attributes:
        name: Name of the rule.
        minimum_sensitivity: Sensitivity in (0, 1) for the rule ``sensitivity``; None for other rules.
        cost_false_negative: Cost > 0 for the rule ``cost``; None for other rules.

    Raises:
        SettingsError: If a value is missing, is not of this rule, or is out of range.
    """

    name: Rule
    minimum_sensitivity: float | None = None
    cost_false_negative: float | None = None

    def __post_init__(self) -> None:
        values = {"sensitivity": self.minimum_sensitivity, "cost": self.cost_false_negative}
        for rule, value in values.items():
            if (value is not None) != (rule == self.name):
                raise SettingsError(
                    "conflicting_settings",
                    f"the rule '{self.name}' {'needs' if rule == self.name else 'does not take'} the option "
                    f"{'--sensitivity' if rule == 'sensitivity' else '--cost-false-negative'}.",
                    rule=self.name,
                )
        if self.minimum_sensitivity is not None and not 0 < self.minimum_sensitivity < 1:
            raise _out_of_range("sensitivity", "a number between 0 and 1", self.minimum_sensitivity)
        if self.cost_false_negative is not None and not 0 < self.cost_false_negative < np.inf:
            raise _out_of_range("cost_false_negative", "a number > 0", self.cost_false_negative)


def _out_of_range(setting: str, expected: str, value: float) -> SettingsError:
    return SettingsError(
        "setting_out_of_range",
        f"expected {expected} for {setting}, got {value:g}.",
        setting=setting,
        expected=expected,
        found=value,
    )


def candidate_thresholds(probabilities: np.ndarray) -> np.ndarray:
    """Return one threshold for each distinct set of positive cases that is not empty, increasing.

    A threshold is midway between two neighbouring probabilities, so that a rounding error changes no decision; the
    lowest one, at which every case is positive, is midway between 0 and the lowest probability.

    Args:
        probabilities: Probabilities of the class, (N,), N >= 1.
    """
    distinct = np.unique(probabilities)
    return np.asarray((np.concatenate([[0.0], distinct[:-1]]) + distinct) / 2)


def operating_points(
    probabilities: np.ndarray, present: np.ndarray, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return sensitivity and specificity, (T,) each, at each of T thresholds; NaN without a case to compute it from.

    Args:
        probabilities: Probabilities of the class, (N,).
        present: True for each case of the class, (N,), bool.
        thresholds: Thresholds, (T,).
    """
    with_class, without = np.sort(probabilities[present]), np.sort(probabilities[~present])
    with np.errstate(invalid="ignore"):
        sensitivity = 1 - np.searchsorted(with_class, thresholds) / np.float64(len(with_class))
        specificity = np.searchsorted(without, thresholds) / np.float64(len(without))
    return sensitivity, specificity


def choose_threshold(
    probabilities: np.ndarray, present: np.ndarray, patients: np.ndarray, rule: ThresholdRule, class_number: int
) -> DecisionThreshold:
    """Choose the threshold of a class.

    Args:
        probabilities: Probabilities of the class for the validation images, (N,).
        present: True for each image of the class, (N,), bool.
        patients: Patient number of each image, (N,), int64.
        rule: Rule of the choice.
        class_number: Number of the class, from 0.

    Raises:
        DataError: If too few patients are with, or without the class (``too_few_patients``).
    """
    _require_both_groups(present, patients, rule)
    thresholds = candidate_thresholds(probabilities)
    sensitivity, specificity = operating_points(probabilities, present, thresholds)
    if rule.minimum_sensitivity is not None:
        place = int(np.flatnonzero(sensitivity >= rule.minimum_sensitivity - TOLERANCE).max())
    else:
        cost = -(sensitivity + specificity)
        if rule.cost_false_negative is not None:
            missed, alarms = (1 - sensitivity) * present.sum(), (1 - specificity) * (~present).sum()
            cost = (rule.cost_false_negative * missed + alarms) / len(present)
        place = int(np.flatnonzero(cost <= cost.min() + TOLERANCE).min())
    return DecisionThreshold(
        class_number=class_number,
        threshold=float(thresholds[place]),
        rule=rule.name,
        minimum_sensitivity=rule.minimum_sensitivity,
        cost_false_negative=rule.cost_false_negative,
        sensitivity=float(sensitivity[place]),
        specificity=float(specificity[place]),
    )


def _require_both_groups(present: np.ndarray, patients: np.ndarray, rule: ThresholdRule) -> None:
    """Raise if there are too few patients with or without the class."""
    advice = "Use more validation images, or leave the threshold out with --rule none."
    minimum, reason = EACH_GROUP, "with fewer, one patient moves the sensitivity by more than 0.1"
    if rule.minimum_sensitivity is not None and sensitivity_minimum(rule.minimum_sensitivity) > EACH_GROUP:
        minimum = sensitivity_minimum(rule.minimum_sensitivity)
        reason = f"with fewer, a sensitivity of {rule.minimum_sensitivity:g} can't be told from 1"
    what = "a threshold needs validation patients with the class"
    require_patients(what, count_patients(patients, present), minimum, reason, advice)
    what = "a threshold needs validation patients without the class"
    reason = "with fewer, one patient moves the specificity by more than 0.1"
    require_patients(what, count_patients(patients, ~present), EACH_GROUP, reason, advice)
