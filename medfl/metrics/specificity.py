"""Share of the images that are not of a class and are not taken for it."""

from __future__ import annotations

import torch

from medfl.metrics.confusion import confusion, macro, one_against_rest


def specificity(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
    """Images of other classes that are not taken for a class / all images of other classes: TN / (TN + FP).

    Of two classes the second one (1) is the positive one, so this is the share of the negatives that are recognised.
    Of more classes it is the mean over the classes that occur in the labels, each against the rest and all with the
    same weight; a class that all images have is left out.

    Args:
        probabilities: (N, C), floating. Of equal ones the first class counts as predicted.
        labels: (N,), int64.
        num_classes: C.

    Returns:
        In [0, 1]; NaN without images, with NaN probabilities, or without negatives.

    Example:
        >>> specificity(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), torch.tensor([0, 1, 0]), 2)
        0.5
    """
    return float(specificity_of(confusion(probabilities, labels, num_classes)))


def specificity_of(matrix: torch.Tensor) -> torch.Tensor:
    """Specificity, shape (...), float64, of confusion matrices (..., C, C)."""
    found = one_against_rest(matrix)
    others = found.rest + found.alarms
    counted = found.occurs if matrix.shape[-1] != 2 else torch.ones_like(found.occurs)
    return macro(found.rest / others, counted & (others > 0))
