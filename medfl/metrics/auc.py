"""Area under the receiver operating characteristic, from ranks."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from medfl.metrics.confusion import once


def auc(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean over classes of the chance that an image of the class gets a higher probability for it than another image.

    Ties count one half (Mann-Whitney). Of two classes the second one (1) is scored, as is usual for a finding that is
    there or not; of more classes each against the rest, all with the same weight. A class that no image has, or that
    all have, is left out.

    Args:
        probabilities: (N, C), floating, without NaN.
        labels: (N,), int64.
        weights: (N, B), float64, not negative.

    Returns:
        (B,), float64, in [0, 1]; NaN with one class only. Takes O(C N log N).

    Example:
        >>> probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
        >>> auc(probabilities, torch.tensor([0, 0, 1, 1]), torch.ones(4, 1).double())
        tensor([0.7500], dtype=torch.float64)
    """
    classes = [1] if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    return torch.stack([weighted_binary_auc(probabilities[:, c], labels == c, weights) for c in classes]).nanmean(0)


def binary_auc(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """The chance that a positive scores higher than a negative, ties one half.

    Args:
        scores: (N,), floating.
        positive: (N,), bool.

    Returns:
        In [0, 1]; NaN unless there are positives and negatives.
    """
    return float(weighted_binary_auc(scores, positive, once(scores))[0])


def weighted_binary_auc(scores: torch.Tensor, positive: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Areas (B,), float64, with the image weights (N, B), float64; NaN unless there are positives and negatives."""
    lost, order = scores[~positive].sort()
    below = pad(weights[~positive][order].cumsum(0), (0, 0, 1, 0))  # row k: the weight of the k lowest negatives
    won, winners = scores[positive], weights[positive]
    lower, not_higher = torch.searchsorted(lost, won), torch.searchsorted(lost, won, right=True)
    wins = winners * (below[lower] + below[not_higher]) / 2
    return wins.sum(0) / (winners.sum(0) * below[-1])
