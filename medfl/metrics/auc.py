"""Area under the receiver operating characteristic, from ranks."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from medfl.metrics.classification import scorable


def auc(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
    """Mean over classes of the chance that an image of the class gets a higher probability for it than another image.

    Ties count one half (Mann-Whitney). Of two classes the second one (1) is scored, as is usual for a finding that is
    there or not; of more classes each against the rest, all with the same weight. A class that no image has, or that
    all have, is left out.

    Args:
        probabilities: (N, C), floating.
        labels: (N,), int64.
        num_classes: C.

    Returns:
        In [0, 1]; NaN without images, with one class only, or with NaN probabilities. Takes O(C N log N).

    Example:
        >>> auc(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]]), torch.tensor([0, 0, 1, 1]), 2)
        0.75
    """
    if not scorable(probabilities, labels, num_classes):
        return math.nan
    return float(auc_of(probabilities, labels, torch.ones(len(labels), 1, dtype=torch.float64))[0])


def auc_of(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Areas (B,), float64, with the image weights (N, B), float64; the probabilities (N, C) hold no NaN."""
    classes = [1] if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    return torch.stack([binary_auc_of(probabilities[:, c], labels == c, weights) for c in classes]).nanmean(0)


def binary_auc(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """The chance that a positive scores higher than a negative, ties one half.

    Args:
        scores: (N,), floating.
        positive: (N,), bool.

    Returns:
        In [0, 1]; NaN unless there are positives and negatives.
    """
    return float(binary_auc_of(scores, positive, torch.ones(len(scores), 1, dtype=torch.float64))[0])


def binary_auc_of(scores: torch.Tensor, positive: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Areas (B,), float64, with the image weights (N, B), float64; NaN unless there are positives and negatives."""
    lost, order = scores[~positive].sort()
    below = pad(weights[~positive][order].cumsum(0), (0, 0, 1, 0))  # row k: the weight of the k lowest negatives
    won, winners = scores[positive], weights[positive]
    lower, not_higher = torch.searchsorted(lost, won), torch.searchsorted(lost, won, right=True)
    wins = winners * (below[lower] + below[not_higher]) / 2
    return wins.sum(0) / (winners.sum(0) * below[-1])
