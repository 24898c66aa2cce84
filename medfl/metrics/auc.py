"""Area under the receiver operating characteristic (ROC AUC), computed from ranks.

N is the number of images, C the number of classes, and B the number of weightings of the images.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from medfl.metrics.confusion import equal_weights


def auc(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the ROC AUC: the probability that an image of a class is ranked above another one, averaged over classes.

    Ties count one half (Mann-Whitney). For two classes only the second one (1) is evaluated, as is usual for a binary
    finding. For more classes, it is the unweighted mean of each class against the rest. A class with no images, or with
    all images, is left out.

    Args:
        probabilities: Probabilities (N, C), floating, without NaN.
        labels: Class numbers (N,), int64.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        AUC (B,), float64, in [0, 1]; NaN if there is only one class. Takes O(C N log N).

    Example:
        >>> probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
        >>> auc(probabilities, torch.tensor([0, 0, 1, 1]), torch.ones(4, 1).double())
        tensor([0.7500], dtype=torch.float64)
    """
    if probabilities.shape[1] == 2:
        return weighted_binary_auc(probabilities[:, 1], labels == 1, weights)
    classes = range(probabilities.shape[1])
    return torch.stack([weighted_binary_auc(probabilities[:, c], labels == c, weights) for c in classes]).nanmean(0)


def binary_auc(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """Compute the probability that a positive scores higher than a negative; ties count one half.

    Args:
        scores: Scores (N,), floating.
        positive: Whether each image is positive, (N,), bool.

    Returns:
        AUC in [0, 1]; NaN without positives or without negatives.
    """
    return float(weighted_binary_auc(scores, positive, equal_weights(scores))[0])


def weighted_binary_auc(scores: torch.Tensor, positive: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the AUC of a binary finding for each of B weightings of N images.

    Args:
        scores: Scores (N,), floating.
        positive: Whether each image is positive, (N,), bool.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        AUC (B,), float64, in [0, 1]; NaN without positives or without negatives.
    """
    negatives, positives = torch.nonzero(~positive)[:, 0], torch.nonzero(positive)[:, 0]
    lost, order = scores[negatives].sort()
    losers, winners = weights[negatives[order]], weights[positives]
    beaten = weight_below(scores[positives], lost, losers)
    return (winners * beaten).sum(0) / (winners.sum(0) * losers.sum(0))


def weight_below(values: torch.Tensor, others: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum the weights of the other values that are lower than each value; an equal value counts one half.

    Args:
        values: Values (M,), floating, without NaN.
        others: Other values (N,), floating, ascending, without NaN.
        weights: Weights of the other values, (N, B), float64.

    Returns:
        Sums (M, B), float64. Takes O(M log N + (M + N) B).

    Example:
        >>> weight_below(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]), torch.ones(2, 1).double()).T
        tensor([[0.5000, 2.0000]], dtype=torch.float64)
    """
    below = sums_of_first_rows(weights)
    lower, not_higher = torch.searchsorted(others, values), torch.searchsorted(others, values, right=True)
    if torch.equal(lower, not_higher):  # no ties
        return below[lower]
    return (below[lower] + below[not_higher]) / 2


def sums_of_first_rows(weights: torch.Tensor) -> torch.Tensor:
    """Compute the sum of the first k rows of weights for each k from 0 to N.

    An unused column is added during the computation. With a power of two as the number of columns, the values of a
    column share few lines of the processor's cache, and the sums take twice as long.

    Args:
        weights: Weights (N, B), float64.

    Returns:
        Sums (N + 1, B), float64; row k contains the sum of the first k rows.
    """
    return pad(weights, (0, 1, 1, 0)).cumsum(0)[:, :-1]
