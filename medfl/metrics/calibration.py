"""Expected calibration error: how far a model's confidence is from its accuracy."""

from __future__ import annotations

import torch

BINS = 15
"""Bins of equal width in [0, 1], as in the paper."""


def ece(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean over the images of |accuracy - mean confidence| of the bin that an image is in. Lower is better.

    The confidence is the probability of the predicted class. Bin b of 15 holds the confidences in
    ((b - 1) / 15, b / 15]: an image on an edge belongs to the bin below it. With two classes the confidence is at
    least one half, so seven bins stay empty.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, eq. 3.

    Args:
        probabilities: (N, C), floating, without NaN, each row with the sum 1. Of equal ones the first class counts as
            predicted.
        labels: (N,), int64.
        weights: (N, B), float64, not negative.

    Returns:
        (B,), float64, in [0, 1].

    Example:
        >>> ece(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]), torch.ones(2, 1).double())
        tensor([0.2500], dtype=torch.float64)
    """
    predicted = probabilities.argmax(dim=1)
    confidence = probabilities.gather(1, predicted[:, None])[:, 0].double()
    gaps = (predicted == labels).double() - confidence
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]
    sums = torch.zeros(BINS, weights.shape[1], dtype=torch.float64)
    sums.index_add_(0, torch.bucketize(confidence, edges), gaps[:, None] * weights)
    return sums.abs().sum(0) / weights.sum(0)
