"""Share of images whose most probable class is the right one."""

from __future__ import annotations

import math

import torch

from medfl.metrics.inputs import scorable


def accuracy(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
    """Correct images / all images.

    Args:
        probabilities: (N, C), floating. Of equal ones the first class counts as predicted.
        labels: (N,), int64.
        num_classes: C.

    Returns:
        In [0, 1]; NaN without images or with NaN probabilities.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]), 2)
        0.5
    """
    if not scorable(probabilities, labels, num_classes):
        return math.nan
    return int((probabilities.argmax(dim=1) == labels).sum()) / len(labels)
