"""Share of images whose most probable class is the right one."""

from __future__ import annotations

import torch

from medfl.metrics.confusion import confusion


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
    return float(accuracy_of(confusion(probabilities, labels, num_classes)))


def accuracy_of(matrix: torch.Tensor) -> torch.Tensor:
    """Accuracy, shape (...), float64, of confusion matrices (..., C, C); NaN for an empty one."""
    counts = matrix.double()
    return counts.diagonal(dim1=-2, dim2=-1).sum(-1) / counts.sum((-2, -1))
