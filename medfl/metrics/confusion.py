"""Confusion matrices, and the metrics derived from them.

N is the number of images, C the number of classes, and B the number of weightings of the images.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from medfl.errors import ContractError


def is_scorable(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> bool:
    """Return True if metrics can be computed: there is at least one image, and no probability is NaN.

    Args:
        probabilities: Probabilities (N, C), floating.
        labels: Class numbers (N,), int64, in [0, C).
        num_classes: Number of classes C.

    Raises:
        ContractError: If shapes or labels don't match. Without images the shape of `probabilities` is not checked.
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
    """Compute the confusion matrix.

    Args:
        probabilities: Probabilities (N, C), floating. In a tie, the first class counts as predicted.
        labels: Class numbers (N,), int64.
        num_classes: Number of classes C.

    Returns:
        Image counts (C, C), int64: rows are true classes, columns predicted ones. All zero without images or with NaN
        probabilities.

    Example:
        >>> confusion(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), torch.tensor([0, 1, 1]), 2).tolist()
        [[1, 0], [1, 1]]
    """
    if not is_scorable(probabilities, labels, num_classes):
        return torch.zeros(num_classes, num_classes, dtype=torch.int64)
    return weighted_confusions(probabilities, labels, equal_weights(labels))[0].long()


def equal_weights(labels: torch.Tensor) -> torch.Tensor:
    """Return equal weights of 1 for N images, (N, 1), float64."""
    return torch.ones(len(labels), 1, dtype=torch.float64, device=labels.device)


def weighted_confusions(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute a confusion matrix for each weighting of the images.

    Args:
        probabilities: Probabilities (N, C), floating, without NaN. In a tie, the first class counts as predicted.
        labels: Class numbers (N,), int64.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        Matrices (B, C, C), float64: rows are true classes, columns predicted ones.
    """
    classes = probabilities.shape[1]
    counts = weights.new_zeros(classes**2, weights.shape[1])
    counts.index_add_(0, labels * classes + probabilities.argmax(dim=1), weights)
    return counts.T.reshape(-1, classes, classes)


class OneAgainstRest(NamedTuple):
    """Image counts of each class against the rest, each of shape (..., C), float64.

    Attributes:
        hits: True positives: images of the class that are predicted as the class.
        misses: False negatives: images of the class that are predicted as another class.
        alarms: False positives: images of another class that are predicted as the class.
        rest: True negatives: all other images.
    """

    hits: torch.Tensor
    misses: torch.Tensor
    alarms: torch.Tensor
    rest: torch.Tensor

    @property
    def occurs(self) -> torch.Tensor:
        """Whether each class has images, (..., C), bool."""
        return self.hits + self.misses > 0


def one_against_rest(matrix: torch.Tensor) -> OneAgainstRest:
    """Split a confusion matrix into one-against-rest counts.

    Args:
        matrix: Confusion matrices (..., C, C).
    """
    counts = matrix.double()
    hits = counts.diagonal(dim1=-2, dim2=-1)
    misses, alarms = counts.sum(-1) - hits, counts.sum(-2) - hits
    return OneAgainstRest(hits, misses, alarms, counts.sum((-2, -1))[..., None] - hits - misses - alarms)


def macro_average(values: torch.Tensor, defined: torch.Tensor) -> torch.Tensor:
    """Average a metric's values over the classes for which it is defined; for two classes, return the second value.

    Args:
        values: Values per class (..., C), float64.
        defined: Whether each value is defined, (..., C), bool.

    Returns:
        Means (...), float64; NaN if no value is defined.
    """
    if values.shape[-1] == 2:
        values, defined = values[..., 1:], defined[..., 1:]
    return torch.where(defined, values, 0.0).sum(-1) / defined.sum(-1)


def accuracy(matrix: torch.Tensor) -> torch.Tensor:
    """Compute correct images / all images.

    Args:
        matrix: Confusion matrices (..., C, C).

    Returns:
        Accuracy (...), float64, in [0, 1]; NaN without images.

    Example:
        >>> accuracy(torch.tensor([[1, 0], [1, 0]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = matrix.double()
    return counts.diagonal(dim1=-2, dim2=-1).sum(-1) / counts.sum((-2, -1))


def balanced_accuracy(matrix: torch.Tensor) -> torch.Tensor:
    """Compute the mean recall over the classes that occur.

    Args:
        matrix: Confusion matrices (..., C, C). Classes without images are left out.

    Returns:
        Balanced accuracy (...), float64, in [0, 1]; NaN without images.

    Example:
        >>> balanced_accuracy(torch.tensor([[2, 0], [1, 1]]))
        tensor(0.7500, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    return (counts.hits / (counts.hits + counts.misses)).nanmean(-1)


def precision(matrix: torch.Tensor) -> torch.Tensor:
    """Compute TP / (TP + FP): correct predictions of a class / all predictions of the class.

    A class that is never predicted has precision 0, as in scikit-learn with ``zero_division=0``. For two classes, it is
    the value of the second class (1). For more classes, it is the unweighted mean over the classes that occur in the
    labels, each against the rest.

    Args:
        matrix: Confusion matrices (..., C, C).

    Returns:
        Precision (...), float64, in [0, 1]; NaN without images, or if the positive one of two classes doesn't occur.

    Example:
        >>> precision(torch.tensor([[0, 1], [1, 1]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    return macro_average((counts.hits / (counts.hits + counts.alarms)).nan_to_num(0.0), counts.occurs)


def recall(matrix: torch.Tensor) -> torch.Tensor:
    """Compute TP / (TP + FN): correctly predicted images of a class / all images of the class.

    For two classes, it is the value of the second class (1). For more classes, it is the unweighted mean over the
    classes that occur in the labels, each against the rest, which equals the balanced accuracy.

    Args:
        matrix: Confusion matrices (..., C, C).

    Returns:
        Recall (...), float64, in [0, 1]; NaN without images, or if the positive one of two classes doesn't occur.

    Example:
        >>> recall(torch.tensor([[0, 1], [1, 1]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    return macro_average(counts.hits / (counts.hits + counts.misses), counts.occurs)


def specificity(matrix: torch.Tensor) -> torch.Tensor:
    """Compute TN / (TN + FP): the share of the images of other classes that are not predicted as the class.

    For two classes, it is the share of correctly predicted negatives (class 0). For more classes, it is the unweighted
    mean over the classes that occur in the labels, each against the rest; a class that contains all images is left out.

    Args:
        matrix: Confusion matrices (..., C, C).

    Returns:
        Specificity (...), float64, in [0, 1]; NaN without images, or without negatives.

    Example:
        >>> specificity(torch.tensor([[1, 1], [0, 1]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    others = counts.rest + counts.alarms
    counted = counts.occurs if matrix.shape[-1] != 2 else torch.ones_like(counts.occurs)
    return macro_average(counts.rest / others, counted & (others > 0))


def f1(matrix: torch.Tensor) -> torch.Tensor:
    """Compute 2 TP / (2 TP + FP + FN), the harmonic mean of precision and recall (Dice of the two sets of images).

    For two classes, it is the value of the second class (1). For more classes, it is the unweighted mean over the
    classes that occur in the labels, each against the rest. This is the mean of the classes' F1, not the F1 of mean
    precision and mean recall.

    Args:
        matrix: Confusion matrices (..., C, C).

    Returns:
        F1 (...), float64, in [0, 1]; NaN without images, or if the positive one of two classes doesn't occur.

    Example:
        >>> f1(torch.tensor([[0, 1], [1, 1]]))
        tensor(0.5000, dtype=torch.float64)
    """
    counts = one_against_rest(matrix)
    return macro_average(2 * counts.hits / (2 * counts.hits + counts.alarms + counts.misses), counts.occurs)
