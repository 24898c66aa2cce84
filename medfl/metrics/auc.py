"""Area under the receiver operating characteristic, from ranks."""

from __future__ import annotations

import math

import torch

from medfl.metrics.inputs import scorable


def auc(probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
    """Mean over classes of the chance that an image of the class gets a higher probability for it than another image.

    Ties count one half (Mann-Whitney). Of two classes the second one is scored, as is usual for a finding that is
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
    classes = [1] if num_classes == 2 else range(num_classes)
    areas = [binary_auc(probabilities[:, c], labels == c) for c in classes]
    defined = [area for area in areas if not math.isnan(area)]
    return math.fsum(defined) / len(defined) if defined else math.nan


def binary_auc(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """The chance that a positive scores higher than a negative, ties one half.

    Args:
        scores: (N,), floating.
        positive: (N,), bool.

    Returns:
        In [0, 1]; NaN unless there are positives and negatives.
    """
    count = int(positive.sum())
    others = len(positive) - count
    if not count or not others:
        return math.nan
    _, place, sizes = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = sizes.cumsum(0).double() - (sizes.double() - 1) / 2  # of each distinct score: the mean of its ranks
    total = float(ranks[place[positive]].sum())
    return (total - count * (count + 1) / 2) / (count * others)
