"""Confusion matrices, and the scores that follow from them."""

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
            "wrong_shape",
            f"expected probabilities of shape ({len(labels)}, {num_classes}), got {tuple(probabilities.shape)}. "
            "The predictor should return one logit for each class.",
            expected=(len(labels), num_classes),
            found=tuple(probabilities.shape),
        )
    if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise ContractError(
            "wrong_label",
            f"expected labels in [0, {num_classes}), got [{int(labels.min())}, {int(labels.max())}]. "
            "Correct the labels or the task's number of classes.",
            classes=num_classes,
            found=(int(labels.min()), int(labels.max())),
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
    return weighted_confusions(probabilities, labels, once(labels))[0].long()


def once(labels: torch.Tensor) -> torch.Tensor:
    """The weights (N, 1), float64, with which each of N images counts once."""
    return torch.ones(len(labels), 1, dtype=torch.float64, device=labels.device)


def weighted_confusions(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """A confusion matrix for each weighting of the images.

    Args:
        probabilities: (N, C), floating, without NaN. Of equal ones the first class counts as predicted.
        labels: (N,), int64.
        weights: (N, B), float64, not negative.

    Returns:
        (B, C, C), float64: rows are the true classes, columns the predicted ones.
    """
    classes = probabilities.shape[1]
    counts = weights.new_zeros(classes**2, weights.shape[1])
    counts.index_add_(0, labels * classes + probabilities.argmax(dim=1), weights)
    return counts.T.reshape(-1, classes, classes)


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


def accuracy(matrix: torch.Tensor) -> torch.Tensor:
    """Correct images / all images.

    Args:
        matrix: (..., C, C), numbers of images.

    Returns:
        (...), float64, in [0, 1]; NaN without images.

    Example:
        >>> accuracy(torch.tensor([[1, 0], [1, 0]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = matrix.double()
    return counts.diagonal(dim1=-2, dim2=-1).sum(-1) / counts.sum((-2, -1))


def balanced_accuracy(matrix: torch.Tensor) -> torch.Tensor:
    """Mean over the classes that occur of the share of their images that are recognised.

    Args:
        matrix: (..., C, C), numbers of images. Classes without images don't count.

    Returns:
        (...), float64, in [0, 1]; NaN without images.

    Example:
        >>> balanced_accuracy(torch.tensor([[2, 0], [1, 1]]))
        tensor(0.7500, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    return (counts.hits / (counts.hits + counts.misses)).nanmean(-1)


def precision(matrix: torch.Tensor) -> torch.Tensor:
    """Images of a class that are taken for it / all images taken for it: TP / (TP + FP).

    A class that no image is taken for has precision 0, as in scikit-learn with ``zero_division=0``. Of two classes the
    second one (1) is the positive one, and only its value counts. Of more classes it is the mean over the classes that
    occur in the labels, each against the rest and all with the same weight.

    Args:
        matrix: (..., C, C), numbers of images.

    Returns:
        (...), float64, in [0, 1]; NaN without images, or where the positive one of two classes doesn't occur.

    Example:
        >>> precision(torch.tensor([[0, 1], [1, 1]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    return macro((counts.hits / (counts.hits + counts.alarms)).nan_to_num(0.0), counts.occurs)


def recall(matrix: torch.Tensor) -> torch.Tensor:
    """Images of a class that are taken for it / all images of the class: TP / (TP + FN).

    Of two classes the second one (1) is the positive one, and only its value counts. Of more classes it is the mean
    over the classes that occur in the labels, each against the rest and all with the same weight, which is the
    balanced accuracy.

    Args:
        matrix: (..., C, C), numbers of images.

    Returns:
        (...), float64, in [0, 1]; NaN without images, or where the positive one of two classes doesn't occur.

    Example:
        >>> recall(torch.tensor([[0, 1], [1, 1]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    return macro(counts.hits / (counts.hits + counts.misses), counts.occurs)


def specificity(matrix: torch.Tensor) -> torch.Tensor:
    """Images of other classes that are not taken for a class / all images of other classes: TN / (TN + FP).

    Of two classes the second one (1) is the positive one, so this is the share of the negatives that are recognised.
    Of more classes it is the mean over the classes that occur in the labels, each against the rest and all with the
    same weight; a class that all images have is left out.

    Args:
        matrix: (..., C, C), numbers of images.

    Returns:
        (...), float64, in [0, 1]; NaN without images, or without negatives.

    Example:
        >>> specificity(torch.tensor([[1, 1], [0, 1]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    others = counts.rest + counts.alarms
    counted = counts.occurs if matrix.shape[-1] != 2 else torch.ones_like(counts.occurs)
    return macro(counts.rest / others, counted & (others > 0))


def f1(matrix: torch.Tensor) -> torch.Tensor:
    """2 TP / (2 TP + FP + FN), which is the harmonic mean of precision and recall (Dice of the two sets of images).

    Of two classes the second one (1) is the positive one, and only its value counts. Of more classes it is the mean
    over the classes that occur in the labels, each against the rest and all with the same weight; this is the mean of
    the classes' F1, not the F1 of mean precision and mean recall.

    Args:
        matrix: (..., C, C), numbers of images.

    Returns:
        (...), float64, in [0, 1]; NaN without images, or where the positive one of two classes doesn't occur.

    Example:
        >>> f1(torch.tensor([[0, 1], [1, 1]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    return macro(2 * counts.hits / (2 * counts.hits + counts.alarms + counts.misses), counts.occurs)
