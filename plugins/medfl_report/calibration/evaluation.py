"""Evaluation of a calibration on test images: rates at the threshold, scores before and after, coverage of sets.

A rate of too few patients is not given, because it reveals their diagnoses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from medfl.bundle.calibrated import conformal_classes, conformal_ends, decide, recalibrate
from medfl.objectives.losses import CoxLoss
from medfl.objectives.regression import Regression
from medfl.objectives.survival import Survival
from medfl.records.calibration import Calibration
from medfl.records.calibration_evaluation import PART_COVERAGE, CalibrationEvaluation, PatientsNeeded, Rate, ScoreChange
from medfl_report.calibration.choose import patient_of_each_image
from medfl_report.calibration.minimum_patients import count_patients
from medfl_report.calibration.sample_size import (
    events_for_hazard_ratio,
    patients_for_mean,
    patients_for_paired_proportions,
)
from medfl_report.predictions import PredictionSet
from medfl_report.statistics import wilson_over_patients

MIN_PATIENTS = 5
"""Minimum number of patients behind a rate."""

DIFFERENCES = (0.02, 0.05, 0.1)
"""Differences between two sensitivities or specificities for which the number of patients is computed."""

ERROR_SHARES = (0.05, 0.1, 0.2)
"""Differences between two mean absolute errors, as shares of the measured one."""

HAZARD_RATIOS = (1.5, 2.0, 3.0)
"""Hazard ratios between two risk groups for which the number of patients is computed."""


def recalibrated(calibration: Calibration, tested: PredictionSet) -> PredictionSet:
    """Return a test set with recalibrated predictions."""
    return replace(tested, predictions=torch.from_numpy(recalibrate(calibration, tested.predictions.numpy())))


def evaluate_calibration(site: str, calibration: Calibration, tested: PredictionSet) -> CalibrationEvaluation:
    """Evaluate a calibration on test images.

    Args:
        site: Name of the site.
        calibration: Calibration of the model, chosen on validation images.
        tested: The model's own predictions for the test images.
    """
    evaluation = CalibrationEvaluation(site=site, images=len(tested.rows), patients=tested.patient_count)
    if not tested.defined or count_patients(patient_of_each_image(tested)) < MIN_PATIENTS:
        return evaluation
    rates, sizes = _coverage(calibration, tested)
    rates = [*_threshold_rates(calibration, tested), *rates]
    return evaluation.model_copy(
        update={
            "rates": tuple(rates),
            "scores": tuple(_score_changes(calibration, tested)),
            "set_size": sizes,
            "needed": tuple(_patients_needed(calibration, tested, rates)),
        }
    )


def make_rate(name: str, is_right: np.ndarray, tested: PredictionSet, chosen: np.ndarray | None = None) -> Rate | None:
    """Return the share of right images among the chosen ones; None for fewer than `MIN_PATIENTS` patients.

    Args:
        name: Name of the rate.
        is_right: True for each image that counts, (N,), bool.
        tested: Test set of N images.
        chosen: True for each image in the denominator, (N,), bool; None for all.
    """
    chosen = np.ones(len(is_right), dtype=bool) if chosen is None else chosen
    if count_patients(patient_of_each_image(tested), chosen) < MIN_PATIENTS:
        return None
    right = torch.from_numpy(is_right[chosen])
    patients = None if tested.patients is None else tested.patients[torch.from_numpy(chosen)]
    low, high = wilson_over_patients(right, patients)
    return Rate(name=name, value=float(right.double().mean()), low=low, high=high, images=len(right))


def _threshold_rates(calibration: Calibration, tested: PredictionSet) -> list[Rate]:
    """Return sensitivity, specificity and predictive values at the threshold; empty without one."""
    if calibration.threshold is None:
        return []
    number = calibration.threshold.class_number
    values = recalibrate(calibration, tested.predictions.numpy())
    predicted = decide(calibration.threshold, values) == number
    present = tested.targets.numpy() == number
    rates = (
        make_rate("sensitivity", predicted, tested, present),
        make_rate("specificity", ~predicted, tested, ~present),
        make_rate("positive predictive value", present, tested, predicted),
        make_rate("negative predictive value", ~present, tested, ~predicted),
    )
    return [rate for rate in rates if rate is not None]


def _coverage(calibration: Calibration, tested: PredictionSet) -> tuple[list[Rate], tuple[float, ...]]:
    """Return the coverage of the prediction sets, and the mean size of sets or the mean widths of intervals."""
    own, targets = tested.predictions.numpy(), tested.targets.numpy()
    if calibration.conformal_set is not None:
        inside = conformal_classes(calibration.conformal_set, own)
        covered = inside[np.arange(len(targets)), targets]
        rates = [make_rate("coverage", covered, tested)]
        for number in range(own.shape[1]):
            rates.append(make_rate(f"{PART_COVERAGE}class {number}", covered, tested, targets == number))
        return [rate for rate in rates if rate is not None], (float(inside.sum(axis=1).mean()),)
    if calibration.conformal_interval is not None:
        low, high = conformal_ends(calibration.conformal_interval, own)
        covered = (low <= targets) & (targets <= high)
        names = ["coverage", *(f"{PART_COVERAGE}output {number}" for number in range(1, own.shape[1]))]
        rates = [make_rate(name, covered[:, number], tested) for number, name in enumerate(names)]
        return [rate for rate in rates if rate is not None], tuple((high - low).mean(axis=0).tolist())
    return [], ()


def _score_changes(calibration: Calibration, tested: PredictionSet) -> list[ScoreChange]:
    """Return scores that measure calibration, before and after recalibration; empty without recalibration."""
    if calibration.recalibration is None:
        return []
    after, objective = recalibrated(calibration, tested), tested.objective
    if isinstance(objective, Survival):
        return _change("Cox loss", cox_loss(tested), cox_loss(after))
    if isinstance(objective, Regression):
        pairs = (("mae", tested.score("mae"), after.score("mae")), ("bias", bias(tested), bias(after)))
        return [change for name, *values in pairs for change in _change(name, *values)]
    changes = _change("log loss", log_loss(tested), log_loss(after))
    for metric in ("brier", "ece"):
        if metric in objective.scores:
            changes += _change(metric, tested.score(metric), after.score(metric))
    return changes


def _change(name: str, before: float | None, after: float | None) -> list[ScoreChange]:
    """Return the change of a score in a list; an empty list if the score is not defined."""
    if before is None or after is None or not np.isfinite([before, after]).all():
        return []
    return [ScoreChange(name=name, before=before, after=after)]


def log_loss(tested: PredictionSet) -> float:
    """Return the mean negative logarithm of the true class's probability; infinite if one of them is 0."""
    own = tested.predictions.numpy()[np.arange(len(tested.rows)), tested.targets.numpy()]
    with np.errstate(divide="ignore"):
        return float(-np.log(own).mean())


def cox_loss(tested: PredictionSet) -> float:
    """Return the negative log partial likelihood of the risks, divided by the number of events; NaN without events."""
    if not bool((tested.targets[:, 1] == 1).any()):
        return float("nan")
    return float(CoxLoss()(tested.predictions, tested.targets))


def bias(tested: PredictionSet) -> float:
    """Return the mean of prediction minus true value, over images and numbers."""
    return float((tested.predictions - tested.targets).mean())


def _patients_needed(calibration: Calibration, tested: PredictionSet, rates: list[Rate]) -> list[PatientsNeeded]:
    """Return how many patients detect a difference from what was measured on the test images."""
    patients = patient_of_each_image(tested)
    everyone = count_patients(patients)
    if isinstance(tested.objective, Survival):
        return _events_needed(calibration, tested, everyone)
    if isinstance(tested.objective, Regression):
        return _errors_needed(recalibrated(calibration, tested), everyone)
    if calibration.threshold is None:
        return []
    present = tested.targets.numpy() == calibration.threshold.class_number
    shares = {"sensitivity": count_patients(patients, present), "specificity": count_patients(patients, ~present)}
    needed = []
    for rate in rates:
        for difference in DIFFERENCES:
            if rate.name in shares and rate.value - difference > 0:
                units = patients_for_paired_proportions(rate.value, rate.value - difference)
                needed.append(
                    PatientsNeeded(
                        quantity=rate.name,
                        measured=rate.value,
                        difference=difference,
                        units=units,
                        patients=int(np.ceil(units * everyone / shares[rate.name])),
                    )
                )
    return needed


def _errors_needed(tested: PredictionSet, everyone: int) -> list[PatientsNeeded]:
    """Return how many patients detect a difference between two models' mean absolute errors.

    The errors of both models are taken as independent and equally variable.

    Args:
        tested: Test set with recalibrated predictions.
        everyone: Number of patients, >= `MIN_PATIENTS`.
    """
    _, places = np.unique(patient_of_each_image(tested), return_inverse=True)
    errors = np.abs(tested.predictions.numpy() - tested.targets.numpy())[:, 0]
    means = np.bincount(places, weights=errors) / np.bincount(places)
    mean, deviation = float(means.mean()), float(means.std(ddof=1))
    if not mean or not deviation:
        return []
    needed = []
    for share in ERROR_SHARES:
        units = patients_for_mean(share * mean, np.sqrt(2) * deviation)
        needed.append(
            PatientsNeeded(quantity="mae", measured=mean, difference=share * mean, units=units, patients=units)
        )
    return needed


def _events_needed(calibration: Calibration, tested: PredictionSet, everyone: int) -> list[PatientsNeeded]:
    """Return how many events detect a hazard ratio between the two risk groups.

    Args:
        calibration: Calibration with a risk threshold.
        tested: The model's own predictions.
        everyone: Number of patients, >= `MIN_PATIENTS`.
    """
    patients, values = patient_of_each_image(tested), recalibrate(calibration, tested.predictions.numpy())
    share = float((values[:, 0] > (calibration.risk_threshold or 0.0)).mean())
    with_event = count_patients(patients, tested.targets[:, 1].numpy() == 1)
    if not 0 < share < 1 or with_event < MIN_PATIENTS:
        return []
    needed = []
    for ratio in HAZARD_RATIOS:
        units = events_for_hazard_ratio(ratio, share)
        needed.append(
            PatientsNeeded(
                quantity="share of patients with an event",
                measured=with_event / everyone,
                difference=ratio,
                units=units,
                patients=int(np.ceil(units * everyone / with_event)),
            )
        )
    return needed
