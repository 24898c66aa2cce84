"""Texts about a calibration, for reports and model cards."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.records.calibration import (
    Calibration,
    DecisionThreshold,
    IsotonicScaling,
    LinearScaling,
    TemperatureScaling,
)
from medfl.records.calibration_evaluation import PART_COVERAGE, CalibrationEvaluation
from medfl.utils.formats import count, join_words, score


def chosen_words(calibrations: Sequence[Calibration]) -> str:
    """Return the numbers of validation patients of some calibrations, in words."""
    counts = [
        f"{count(chosen.patients, 'patient') if chosen.patients else count(chosen.images, 'image')} of "
        f"{join_words(chosen.sites)}"
        for chosen in dict.fromkeys(calibration.chosen_on for calibration in calibrations)
    ]
    return "; ".join(counts)


def recalibration_words(calibration: Calibration) -> str:
    """Return a recalibration in words."""
    scaling = calibration.recalibration
    if isinstance(scaling, TemperatureScaling):
        return f"temperature {scaling.temperature:.3f}"
    if isinstance(scaling, IsotonicScaling):
        return "isotonic"
    if isinstance(scaling, LinearScaling):
        if calibration.risk_threshold is not None:
            return f"slope {scaling.slopes[0]:.3g}"
        maps = zip(scaling.intercepts, scaling.slopes, strict=True)
        return "; ".join(f"{intercept:.3g} + {slope:.3g} x" for intercept, slope in maps)
    return "none"


def rule_words(threshold: DecisionThreshold) -> str:
    """Return the rule of a threshold in words."""
    if threshold.rule == "sensitivity":
        return f"sensitivity at least {threshold.minimum_sensitivity:g}"
    if threshold.rule == "cost":
        return f"lowest cost, false negative {threshold.cost_false_negative:g}"
    return "Youden's index"


def evaluation_words(evaluation: CalibrationEvaluation) -> str:
    """Return the rates and the score changes of an evaluation in a line, without the coverage of single classes."""
    parts = [
        f"{rate.name} {score(rate.value)} [{score(rate.low)}, {score(rate.high)}]"
        for rate in evaluation.rates
        if not rate.name.startswith(PART_COVERAGE)
    ]
    parts += [f"{change.name} {score(change.before)} -> {score(change.after)}" for change in evaluation.scores]
    return "; ".join(parts) or "too few patients for a rate"
