"""Every metric for many weightings of the same images at once, as resampling needs it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from medfl.metrics.auc import auc_of
from medfl.metrics.calibration import ece_of
from medfl.metrics.classification import (
    accuracy_of,
    balanced_accuracy_of,
    cells,
    f1_of,
    precision_of,
    recall_of,
    scorable,
    specificity_of,
)

OF_CONFUSION: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "accuracy": accuracy_of,
    "balanced_accuracy": balanced_accuracy_of,
    "f1": f1_of,
    "precision": precision_of,
    "recall": recall_of,
    "specificity": specificity_of,
}
"""Name to a function of confusion matrices (..., C, C)."""

OF_IMAGES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "auc": auc_of,
    "ece": ece_of,
}
"""Name to a function of probabilities (N, C), labels (N,) and weights (N, B)."""


def weighted(
    metric: str, probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int, weights: torch.Tensor
) -> torch.Tensor:
    """A metric where each image counts as often as its weight says.

    With whole numbers it is what the metric says of the data in which each image is repeated that often.

    Args:
        metric: Its name.
        probabilities: (N, C), floating.
        labels: (N,), int64.
        num_classes: C.
        weights: (N, B), float64, not negative: B weightings.

    Returns:
        (B,), float64; NaN where the metric is not defined.
    """
    if not scorable(probabilities, labels, num_classes):
        return torch.full((weights.shape[1],), math.nan, dtype=torch.float64)
    if metric in OF_IMAGES:
        return OF_IMAGES[metric](probabilities, labels, weights)
    counts = torch.zeros(num_classes**2, weights.shape[1], dtype=torch.float64)
    counts.index_add_(0, cells(probabilities, labels), weights)
    return OF_CONFUSION[metric](counts.T.reshape(-1, num_classes, num_classes))
