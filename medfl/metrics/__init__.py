"""Scores of a classifier, by name: functions of confusion matrices, or of probabilities and labels.

Each metric can be weighted (`medfl.metrics.metric.Metric`), and is called with softmax probabilities (N, C), labels
(N,), int64, and the number of classes C. It is NaN where it is not defined, for example without images, and where a
probability is NaN, as after a diverged training. Of two classes the second one (1) is the positive one, wherever that
matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from medfl.metrics.auc import auc
from medfl.metrics.calibration import ece
from medfl.metrics.confusion import accuracy, balanced_accuracy, confusion, f1, precision, recall, specificity
from medfl.metrics.metric import Metric, of_confusion

__all__ = ["LOWER_IS_BETTER", "METRICS", "UNBOUNDED", "Metric", "confusion", "worst"]

METRICS: dict[str, Metric] = {
    "accuracy": of_confusion(accuracy),
    "auc": Metric(auc),
    "balanced_accuracy": of_confusion(balanced_accuracy),
    "ece": Metric(ece),
    "f1": of_confusion(f1),
    "precision": of_confusion(precision),
    "recall": of_confusion(recall),
    "specificity": of_confusion(specificity),
}
"""Name to metric; larger is better but for those in `LOWER_IS_BETTER`."""

LOWER_IS_BETTER = frozenset({"ece", "brier", "mae", "rmse", "hd95"})
"""Metrics of all objectives that measure an error."""

UNBOUNDED = frozenset({"mae", "rmse", "r2", "pearson", "hd95"})
"""Metrics of all objectives whose values may lie outside [0, 1]."""


def worst(metric: str, values: Iterable[float]) -> float:
    """The worst of a metric's values: the smallest, or the largest where lower is better.

    Args:
        metric: Its name.
        values: For example one for each site. NaN, where the metric is not defined, is left out.

    Returns:
        NaN if no value is left.

    Example:
        >>> worst("accuracy", [0.7, 0.9]), worst("ece", [0.1, 0.3])
        (0.7, 0.3)
    """
    defined = [value for value in values if not math.isnan(value)]
    return (max if metric in LOWER_IS_BETTER else min)(defined, default=math.nan)
