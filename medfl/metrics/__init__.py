"""Metrics of classifiers by name: functions of confusion matrices, or of probabilities and labels.

Each metric supports case weights (`medfl.metrics.metric.Metric`). Its arguments are softmax probabilities (N, C),
labels (N,), int64, and the number of classes C. It is NaN if it is undefined, for example without images, and if a
probability is NaN, as after a diverged training. Of two classes, the second one (1) is the positive class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from medfl.metrics.auc import auc
from medfl.metrics.calibration import ece
from medfl.metrics.confusion import accuracy, balanced_accuracy, confusion, f1, precision, recall, specificity
from medfl.metrics.metric import Metric, confusion_metric

__all__ = ["LOWER_IS_BETTER_METRICS", "METRICS", "UNBOUNDED_METRICS", "Metric", "confusion", "worst"]

METRICS: dict[str, Metric] = {
    "accuracy": confusion_metric(accuracy),
    "auc": Metric(auc),
    "balanced_accuracy": confusion_metric(balanced_accuracy),
    "ece": Metric(ece),
    "f1": confusion_metric(f1),
    "precision": confusion_metric(precision),
    "recall": confusion_metric(recall),
    "specificity": confusion_metric(specificity),
}
"""Metrics of classifiers by name. Larger is better, except for `LOWER_IS_BETTER_METRICS`."""

LOWER_IS_BETTER_METRICS = frozenset({"ece", "brier", "mae", "rmse", "hd95"})
"""Names of the metrics (of all objectives, also of regression and segmentation) for which smaller is better."""

UNBOUNDED_METRICS = frozenset({"mae", "rmse", "r2", "pearson", "hd95"})
"""Names of the metrics (of all objectives) whose values may be outside [0, 1]."""


def worst(metric: str, values: Iterable[float]) -> float:
    """Return the worst of a metric's values: the smallest, or the largest if lower is better.

    Args:
        metric: Name of the metric.
        values: Values, for example one per site. NaN values are ignored.

    Returns:
        The worst value; NaN if all values are NaN.

    Example:
        >>> worst("accuracy", [0.7, 0.9]), worst("ece", [0.1, 0.3])
        (0.7, 0.3)
    """
    defined = [value for value in values if not math.isnan(value)]
    return (max if metric in LOWER_IS_BETTER_METRICS else min)(defined, default=math.nan)
