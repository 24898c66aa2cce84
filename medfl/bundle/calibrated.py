"""Apply the calibration of an exported bundle to predictions, and write the results into cells of a prediction file.

N is the number of cases and K the number of values that a model predicts for a case: class probabilities, numbers, or a
risk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from medfl.engine.runs.site_bundles import WEIGHTS
from medfl.errors import StoreError
from medfl.objectives import Objective
from medfl.objectives.objective import format_value
from medfl.objectives.survival import HIGHER, LOWER
from medfl.records.calibration import (
    Calibration,
    ConformalInterval,
    ConformalSet,
    DecisionThreshold,
    IsotonicScaling,
    LinearScaling,
    TemperatureScaling,
)
from medfl.utils.files import sha256_of
from medfl.utils.formats import name_or_number

TINY = float(np.finfo(np.float32).tiny)
"""Smallest probability whose logarithm is taken; smaller ones are raised to it."""


def read_calibration(bundle_root: str | Path, ckpt_dir: str | Path) -> Calibration:
    """Read a bundle's ``configs/calibration.json`` and check that it belongs to the bundle's weights.

    Args:
        bundle_root: Folder of the bundle.
        ckpt_dir: Folder of the weights ``model.pt``.

    Raises:
        StoreError: If the file is missing or damaged, or if the weights are not those of the calibration.
    """
    path = Path(bundle_root) / "configs" / Calibration.NAME
    calibration, weights = Calibration.read(path), Path(ckpt_dir) / WEIGHTS.name
    if not weights.is_file():
        raise StoreError(
            "missing_model", f"expected the weights of the model at '{weights}', none found.", path=weights
        )
    if (digest := sha256_of(weights)) != calibration.weights:
        raise StoreError(
            "other_weights",
            f"'{path}' was made for weights with the SHA-256 {calibration.weights[:12]}..., but '{weights}' has "
            f"{digest[:12]}.... Thresholds of one model are wrong for another: run `medfl calibrate` again, or give "
            "--calibration '$None' for the model's own predictions.",
            path=path,
            expected=calibration.weights,
            found=digest,
        )
    return calibration


def recalibrate(calibration: Calibration, predictions: np.ndarray) -> np.ndarray:
    """Return recalibrated predictions (N, K), float64; a copy of the predictions without a recalibration.

    Args:
        calibration: Calibration of the model.
        predictions: Predictions of the model, (N, K).
    """
    values, scaling = np.array(predictions, dtype=np.float64), calibration.recalibration
    if isinstance(scaling, TemperatureScaling):
        return scale_temperature(values, scaling.temperature)
    if isinstance(scaling, IsotonicScaling):
        return scale_isotonic(values, scaling)
    if isinstance(scaling, LinearScaling):
        return np.array(scaling.intercepts) + np.array(scaling.slopes) * values
    return values


def scale_temperature(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Return the softmax (N, K) of the logarithms of probabilities, divided by a temperature > 0.

    Source: Guo et al. 2017, On calibration of modern neural networks.
    """
    logits = np.log(np.maximum(probabilities, TINY)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def scale_isotonic(probabilities: np.ndarray, scaling: IsotonicScaling) -> np.ndarray:
    """Return the probabilities (N, K) after isotonic recalibration.

    If the curves of all classes are 0 for a case, its classes are equally probable.

    Source: Zadrozny and Elkan 2002, Transforming classifier scores into accurate multiclass probability estimates.
    """
    if len(scaling.curves) == 1:
        present = np.interp(probabilities[:, 1], scaling.curves[0].knots, scaling.curves[0].values)
        return np.stack([1 - present, present], axis=1)
    each = [np.interp(probabilities[:, number], c.knots, c.values) for number, c in enumerate(scaling.curves)]
    values = np.stack(each, axis=1)
    total = values.sum(axis=1, keepdims=True)
    return np.where(total > 0, values / np.where(total > 0, total, 1), 1 / len(scaling.curves))


def decide(threshold: DecisionThreshold | None, probabilities: np.ndarray) -> np.ndarray:
    """Return the predicted class of each case, (N,), int64.

    Args:
        threshold: Threshold of a class; None for the most probable class.
        probabilities: Recalibrated probabilities (N, K).
    """
    if threshold is None:
        return np.asarray(probabilities.argmax(axis=1))
    others = probabilities.copy()
    others[:, threshold.class_number] = -1
    is_positive = probabilities[:, threshold.class_number] >= threshold.threshold
    return np.where(is_positive, threshold.class_number, others.argmax(axis=1))


def conformal_classes(conformal: ConformalSet, probabilities: np.ndarray) -> np.ndarray:
    """Return which classes are in each case's prediction set, (N, K), bool.

    Args:
        conformal: Prediction sets.
        probabilities: The model's own probabilities (N, K), before recalibration.
    """
    inside = probabilities >= conformal.minimum
    inside[np.arange(len(inside)), probabilities.argmax(axis=1)] = True
    return np.asarray(inside)


def conformal_ends(conformal: ConformalInterval, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper ends (N, K) of the prediction intervals.

    Args:
        conformal: Prediction intervals.
        predictions: The model's own predictions (N, K), before recalibration.
    """
    return predictions + np.array(conformal.low), predictions + np.array(conformal.high)


def calibrated_columns(objective: Objective, calibration: Calibration, names: Sequence[str]) -> tuple[str, ...]:
    """Return the headings of `calibrated_cells`: the objective's own, and those of the prediction sets.

    Args:
        objective: Objective of the task.
        calibration: Calibration of the model.
        names: Names of the outputs; may be empty.
    """
    columns = objective.prediction_columns(names)
    if calibration.conformal_set is not None:
        columns += ("conformal_set", "conformal_coverage")
    if calibration.conformal_interval is not None:
        outputs = columns[: calibration.outputs]
        columns += (*(f"{name}_{end}" for name in outputs for end in ("low", "high")), "conformal_coverage")
    if calibration.risk_threshold is not None:
        columns += ("risk_group", "decision_rule")
    return columns


def calibrated_cells(
    objective: Objective, calibration: Calibration, predictions: np.ndarray, names: Sequence[str]
) -> list[str]:
    """Return one case's cells in the file that the inference of a calibrated bundle writes.

    Args:
        objective: Objective of the task.
        calibration: Calibration of the model.
        predictions: The model's own predictions for the case, (K,).
        names: Names of the outputs; if empty, numbers are used.
    """
    own = np.asarray(predictions, dtype=np.float64)[np.newaxis]
    values = recalibrate(calibration, own)
    numbers = [format_value(value) for value in values[0].tolist()]
    if objective.has_class_labels:
        chosen = name_or_number(int(decide(calibration.threshold, values)[0]), names)
        cells = [chosen, describe_threshold(calibration.threshold, names), *numbers]
    else:
        cells = [*numbers, objective.unit]
    if calibration.conformal_set is not None:
        inside = np.flatnonzero(conformal_classes(calibration.conformal_set, own)[0])
        members = "; ".join(name_or_number(int(number), names) for number in inside)
        cells += [members, format_value(calibration.conformal_set.coverage)]
    if calibration.conformal_interval is not None:
        ends = np.stack(conformal_ends(calibration.conformal_interval, own), axis=2)[0]
        cells += [*map(format_value, ends.ravel().tolist()), format_value(calibration.conformal_interval.coverage)]
    if calibration.risk_threshold is not None:
        group = HIGHER if values[0, 0] > calibration.risk_threshold else LOWER
        cells += [group, f"risk > {calibration.risk_threshold:.4g}"]
    return cells


def describe_threshold(threshold: DecisionThreshold | None, names: Sequence[str]) -> str:
    """Return a text that describes how the predicted class is derived from the recalibrated probabilities.

    Args:
        threshold: Threshold of a class; None for the most probable class.
        names: Names of the classes; if empty, numbers are used.
    """
    if threshold is None:
        return "most probable class"
    name = name_or_number(threshold.class_number, names)
    return f"probability of {name} >= {threshold.threshold:.4g}, else the most probable other class"
