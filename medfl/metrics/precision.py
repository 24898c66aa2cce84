"""Share of the images taken for a class that are of it."""

from __future__ import annotations

import torch

from medfl.metrics.confusion import confusion, macro, one_against_rest


def precision(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
    """Images of a class that are taken for it / all images taken for it: TP / (TP + FP).

    A class that no image is taken for has precision 0, as in scikit-learn with ``zero_division=0``. Of two classes the
    second one (1) is the positive one, and only its value counts. Of more classes it is the mean over the classes that
    occur in the labels, each against the rest and all with the same weight.

    Args:
        probabilities: (N, C), floating. Of equal ones the first class counts as predicted.
        labels: (N,), int64.
        num_classes: C.

    Returns:
        In [0, 1]; NaN without images, with NaN probabilities, or where the positive one of two classes doesn't occur.

    Example:
        >>> precision(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), torch.tensor([1, 1, 0]), 2)
        0.5
    """
    return float(precision_of(confusion(probabilities, labels, num_classes)))


def precision_of(matrix: torch.Tensor) -> torch.Tensor:
    """Precision, shape (...), float64, of confusion matrices (..., C, C)."""
    found = one_against_rest(matrix)
    return macro((found.hits / (found.hits + found.alarms)).nan_to_num(0.0), found.occurs)
