"""The harmonic mean of precision and recall."""

from __future__ import annotations

import torch

from medfl.metrics.confusion import confusion, macro, one_against_rest


def f1(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
    """2 TP / (2 TP + FP + FN), which is the harmonic mean of precision and recall (Dice of the two sets of images).

    Of two classes the second one (1) is the positive one, and only its value counts. Of more classes it is the mean
    over the classes that occur in the labels, each against the rest and all with the same weight; this is the mean of
    the classes' F1, not the F1 of mean precision and mean recall.

    Args:
        probabilities: (N, C), floating. Of equal ones the first class counts as predicted.
        labels: (N,), int64.
        num_classes: C.

    Returns:
        In [0, 1]; NaN without images, with NaN probabilities, or where the positive one of two classes doesn't occur.

    Example:
        >>> f1(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), torch.tensor([1, 1, 0]), 2)
        0.5
    """
    return float(f1_of(confusion(probabilities, labels, num_classes)))


def f1_of(matrix: torch.Tensor) -> torch.Tensor:
    """F1, shape (...), float64, of confusion matrices (..., C, C)."""
    found = one_against_rest(matrix)
    return macro(2 * found.hits / (2 * found.hits + found.alarms + found.misses), found.occurs)
