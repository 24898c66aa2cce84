"""Accuracy in which every class counts the same, however rare."""

from __future__ import annotations

import math

import torch

from medfl.metrics.inputs import scorable


def balanced_accuracy(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
    """Mean over the classes that occur of the share of their images that are recognised.

    Args:
        probabilities: (N, C), floating. Of equal ones the first class counts as predicted.
        labels: (N,), int64.
        num_classes: C. Classes without images don't count.

    Returns:
        In [0, 1]; NaN without images or with NaN probabilities.

    Example:
        >>> balanced_accuracy(torch.tensor([[0.9, 0.1]] * 3 + [[0.2, 0.8]]), torch.tensor([0, 0, 1, 1]), 2)
        0.75
    """
    if not scorable(probabilities, labels, num_classes):
        return math.nan
    right = labels[probabilities.argmax(dim=1) == labels]
    counts = torch.bincount(labels, minlength=num_classes)
    recalls = torch.bincount(right, minlength=num_classes).double() / counts
    return float(recalls[counts > 0].mean())
