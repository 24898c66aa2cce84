"""Choose the calibration of an exported model from its predictions for validation images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from medfl.bundle.calibrated import recalibrate
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.objectives import Objective
from medfl.objectives.multiclass import Multiclass
from medfl.objectives.regression import Regression
from medfl.objectives.survival import Survival
from medfl.records.calibration import Calibration, ChosenOn, Recalibration
from medfl.utils.formats import name_or_number
from medfl_report.calibration.conformal import fit_conformal_interval, fit_conformal_set
from medfl_report.calibration.minimum_patients import RISK_GROUPS, count_patients, require_patients
from medfl_report.calibration.recalibration import fit_isotonic, fit_linear, fit_risk_slope, fit_temperature
from medfl_report.calibration.thresholds import ThresholdRule, choose_threshold
from medfl_report.predictions import PredictionSet

RecalibrationKind = Literal["temperature", "isotonic", "linear", "none"]
"""Kind of a recalibration."""

SUPPORTED: tuple[tuple[type[Objective], tuple[RecalibrationKind, ...]], ...] = (
    (Multiclass, ("temperature", "isotonic", "none")),
    (Regression, ("linear", "none")),
    (Survival, ("linear", "none")),
)
"""Pairs (objective, kinds of recalibration that it has); the first kind is the default."""


@dataclass(frozen=True)
class CalibrationChoices:
    """Choices of a calibration.

    Attributes:
        rule: Rule of the threshold; None for the default: Youden's index for two classes, or for a named class, and
            otherwise no threshold.
        has_threshold: False for no threshold at all.
        class_name: Name of the class that the threshold is for; None for the second of two classes.
        recalibration: Kind of the recalibration; None for the first of the objective in `SUPPORTED`.
        coverage: Coverage of prediction sets; None for no sets.
    """

    rule: ThresholdRule | None = None
    has_threshold: bool = True
    class_name: str | None = None
    recalibration: RecalibrationKind | None = None
    coverage: float | None = 0.9

    def __post_init__(self) -> None:
        if self.coverage is not None and not 0 < self.coverage < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"expected a number between 0 and 1 for coverage, or 0 for no prediction sets, got {self.coverage:g}.",
                setting="coverage",
                expected="a number between 0 and 1",
                found=self.coverage,
            )


def choose_calibration(
    validation: PredictionSet,
    choices: CalibrationChoices,
    weights: str,
    sites: Sequence[str],
    names: Sequence[str] = (),
) -> Calibration:
    """Choose recalibration, threshold and prediction sets from the predictions for validation images.

    The threshold is chosen on recalibrated predictions, and the prediction sets on the model's own ones.

    Args:
        validation: Predictions for the validation images.
        choices: What to choose.
        weights: SHA-256 of the model's weights.
        sites: Names of the sites that the validation images are from.
        names: Names of the classes or other outputs; may be empty.

    Raises:
        SettingsError: If the objective or a choice is not supported.
        DataError: If there are no usable predictions, or too few patients for a choice.
    """
    objective, count = validation.objective, len(validation.rows)
    kind = recalibration_kind(objective, choices)
    if not validation.defined:
        problem = "there are no validation images" if not count else "the model predicts NaN"
        raise DataError(
            "no_predictions",
            f"expected predictions for validation images, but {problem}. A partition with --val-fraction has some.",
            count=count,
        )
    predictions, targets = validation.predictions.numpy(), validation.targets.numpy()
    patients = patient_of_each_image(validation)
    calibration = Calibration(
        objective=objective.name,
        outputs=predictions.shape[1],
        weights=weights,
        chosen_on=ChosenOn(sites=tuple(sites), images=count, patients=validation.patient_count),
        recalibration=_fit(kind, objective, predictions, targets, patients),
    )
    values = recalibrate(calibration, predictions)
    if isinstance(objective, Survival):
        reason = "with fewer, single patients decide the median"
        what, advice = "risk groups need validation patients", "Use more validation images."
        require_patients(what, count_patients(patients), RISK_GROUPS, reason, advice)
        median = float(np.quantile(values[:, 0], 0.5, method="lower"))
        return calibration.model_copy(update={"risk_threshold": median})
    if isinstance(objective, Regression):
        if choices.coverage is not None:
            interval = fit_conformal_interval(predictions, targets, patients, choices.coverage)
            calibration = calibration.model_copy(update={"conformal_interval": interval})
        return calibration
    if choices.coverage is not None:
        classes = fit_conformal_set(predictions, targets, patients, choices.coverage)
        calibration = calibration.model_copy(update={"conformal_set": classes})
    number = threshold_class(objective, choices, names)
    if number is not None:
        rule = choices.rule or ThresholdRule("youden")
        threshold = choose_threshold(values[:, number], targets == number, patients, rule, number)
        calibration = calibration.model_copy(update={"threshold": threshold})
    return calibration


def recalibration_kind(objective: Objective, choices: CalibrationChoices) -> RecalibrationKind:
    """Return the kind of the recalibration; raise if the objective does not support the choices.

    Args:
        objective: Objective of the task.
        choices: What to choose.

    Raises:
        SettingsError: If the objective is not supported, or does not have the threshold or the recalibration.
    """
    kinds = next((kinds for supported, kinds in SUPPORTED if isinstance(objective, supported)), ())
    if not kinds:
        names = ", ".join(supported.name for supported, _ in SUPPORTED)
        raise SettingsError(
            "unsupported_objective",
            f"calibration is for the objectives {names} and binary, got '{objective.name}': its cases have no single "
            "class, number or risk.",
            objective=objective.name,
        )
    if (choices.rule is not None or choices.class_name is not None) and not objective.has_class_labels:
        raise SettingsError(
            "unsupported_choice",
            f"a threshold of a class needs classes, and the objective '{objective.name}' has none. Leave --rule, "
            "--sensitivity, --cost-false-negative and --class out.",
            objective=objective.name,
            choice="threshold",
        )
    kind = choices.recalibration or kinds[0]
    if kind not in kinds:
        raise SettingsError(
            "unsupported_choice",
            f"expected --recalibrate to be one of {', '.join(kinds)} for the objective '{objective.name}', got "
            f"'{kind}'.",
            objective=objective.name,
            choice=kind,
        )
    return kind


def _fit(
    kind: RecalibrationKind, objective: Objective, predictions: np.ndarray, targets: np.ndarray, patients: np.ndarray
) -> Recalibration | None:
    """Fit a recalibration; return None for the kind ``none``."""
    if kind == "temperature":
        return fit_temperature(predictions, targets, patients)
    if kind == "isotonic":
        return fit_isotonic(predictions, targets, patients)
    if kind == "linear" and isinstance(objective, Survival):
        return fit_risk_slope(predictions[:, 0], targets, patients)
    return fit_linear(predictions, targets, patients) if kind == "linear" else None


def threshold_class(objective: Objective, choices: CalibrationChoices, names: Sequence[str]) -> int | None:
    """Return the number of the class that the threshold is for; None for no threshold.

    Args:
        objective: Objective with classes.
        choices: What to choose.
        names: Names of the classes; if empty, their numbers are the names.

    Raises:
        SettingsError: If the class is unknown, or missing although a rule is given for more than two classes.
    """
    if not choices.has_threshold:
        return None
    known = [name_or_number(number, names) for number in range(objective.classes)]
    if choices.class_name is not None:
        if choices.class_name not in known:
            raise SettingsError(
                "unknown_choice",
                f"unknown class '{choices.class_name}'. {did_you_mean(choices.class_name, known)}",
                what="class",
                choice=choices.class_name,
            )
        return known.index(choices.class_name)
    if objective.classes == 2:
        return 1
    if choices.rule is None:
        return None
    raise SettingsError(
        "missing_class",
        f"a threshold is for one class against all others, and there are {objective.classes}. Name it with --class: "
        f"{', '.join(known)}.",
        known=known,
    )


def patient_of_each_image(predicted: PredictionSet) -> np.ndarray:
    """Return the patient number of each image, (N,), int64; without patients each image is one patient."""
    return np.arange(len(predicted.rows)) if predicted.patients is None else predicted.patients.numpy()
