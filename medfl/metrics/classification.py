"""Scores that follow from the confusion matrix, each as a function of predictions and of matrices."""

from __future__ import annotations

from typing import NamedTuple

import torch

from medfl.errors import ContractError


def scorable(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> bool:
    """Whether there is anything to score: at least one image, and no NaN.

    Args:
        probabilities: (N, C), floating.
        labels: (N,), int64, in [0, C).
        num_classes: C.

    Raises:
        ContractError: If shapes or labels don't fit. Without images the shape of `probabilities` is not looked at.
    """
    if not len(labels):
        return False
    if probabilities.shape != (len(labels), num_classes):
        raise ContractError(
            f"expected probabilities of shape ({len(labels)}, {num_classes}), got {tuple(probabilities.shape)}. "
            "The predictor should return one logit for each class."
        )
    if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise ContractError(
            f"expected labels in [0, {num_classes}), got [{int(labels.min())}, {int(labels.max())}]. "
            "Correct the labels or the task's number of classes."
        )
    return not bool(torch.isnan(probabilities).any())


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


def recall(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
    """Images of a class that are taken for it / all images of the class: TP / (TP + FN).

    Of two classes the second one (1) is the positive one, and only its value counts. Of more classes it is the mean
    over the classes that occur in the labels, each against the rest and all with the same weight, which is the
    balanced accuracy.

    Args:
        probabilities: (N, C), floating. Of equal ones the first class counts as predicted.
        labels: (N,), int64.
        num_classes: C.

    Returns:
        In [0, 1]; NaN without images, with NaN probabilities, or where the positive one of two classes doesn't occur.

    Example:
        >>> recall(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), torch.tensor([1, 1, 0]), 2)
        0.5
    """
    return float(recall_of(confusion(probabilities, labels, num_classes)))


def recall_of(matrix: torch.Tensor) -> torch.Tensor:
    """Recall, shape (...), float64, of confusion matrices (..., C, C)."""
    found = one_against_rest(matrix)
    return macro(found.hits / (found.hits + found.misses), found.occurs)


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
