"""The confusion matrix, and what each class has of it against the rest."""

from __future__ import annotations

from typing import NamedTuple

import torch

from medfl.metrics.inputs import scorable


def confusion(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> torch.Tensor:
    """How many images of each class are taken for each class.

    Args:
        probabilities: (N, C), floating. Of equal ones the first class counts as predicted.
        labels: (N,), int64.
        num_classes: C.

    Returns:
        (C, C), int64: rows are the true classes, columns the predicted ones. All zero without images or with NaN
        probabilities.

    Example:
        >>> confusion(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), torch.tensor([0, 1, 1]), 2).tolist()
        [[1, 0], [1, 1]]
    """
    if not scorable(probabilities, labels, num_classes):
        return torch.zeros(num_classes, num_classes, dtype=torch.int64)
    return torch.bincount(cells(probabilities, labels), minlength=num_classes**2).reshape(num_classes, num_classes)


def cells(probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cell of the confusion matrix that each image counts in, as ``true class * C + predicted class``.

    Args:
        probabilities: (N, C), floating, without NaN.
        labels: (N,), int64.

    Returns:
        (N,), int64.
    """
    return labels * probabilities.shape[1] + probabilities.argmax(dim=1)


class OneAgainstRest(NamedTuple):
    """Numbers of images by class, each of shape (..., C), float64.

    Attributes:
        hits: Of the class, and taken for it (true positives).
        misses: Of the class, and taken for another (false negatives).
        alarms: Of another class, and taken for it (false positives).
        rest: Neither of the class nor taken for it (true negatives).
    """

    hits: torch.Tensor
    misses: torch.Tensor
    alarms: torch.Tensor
    rest: torch.Tensor

    @property
    def occurs(self) -> torch.Tensor:
        """Whether the class has images."""
        return self.hits + self.misses > 0


def one_against_rest(matrix: torch.Tensor) -> OneAgainstRest:
    """Take a confusion matrix apart.

    Args:
        matrix: (..., C, C), of numbers of images.
    """
    counts = matrix.double()
    hits = counts.diagonal(dim1=-2, dim2=-1)
    misses, alarms = counts.sum(-1) - hits, counts.sum(-2) - hits
    return OneAgainstRest(hits, misses, alarms, counts.sum((-2, -1))[..., None] - hits - misses - alarms)


def macro(values: torch.Tensor, defined: torch.Tensor) -> torch.Tensor:
    """The value of the second of two classes; of more classes the mean over those for which it is defined.

    Args:
        values: (..., C), float64.
        defined: (..., C), bool.

    Returns:
        (...), float64; NaN where it is not defined.
    """
    if values.shape[-1] == 2:
        values, defined = values[..., 1:], defined[..., 1:]
    return torch.where(defined, values, 0.0).sum(-1) / defined.sum(-1)
