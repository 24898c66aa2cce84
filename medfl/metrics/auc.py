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
    below = pad(weights[negatives[order]].cumsum(0), (0, 0, 1, 0))  # row k: the weight of the k lowest negatives
    won, winners = scores[positives], weights[positives]
    lower, not_higher = torch.searchsorted(lost, won), torch.searchsorted(lost, won, right=True)
    beaten = below[lower]
    if not torch.equal(lower, not_higher):  # ties
        beaten = (beaten + below[not_higher]) / 2
    return (winners * beaten).sum(0) / (winners.sum(0) * below[-1])
