"""Accuracy in which every class counts the same, however rare."""

from __future__ import annotations

import torch

from medfl.metrics.confusion import confusion, one_against_rest


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
    return float(balanced_accuracy_of(confusion(probabilities, labels, num_classes)))


def balanced_accuracy_of(matrix: torch.Tensor) -> torch.Tensor:
    """Balanced accuracy, shape (...), float64, of confusion matrices (..., C, C); NaN for an empty one."""
    found = one_against_rest(matrix)
    return (found.hits / (found.hits + found.misses)).nanmean(-1)
