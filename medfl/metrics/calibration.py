"""Expected calibration error (ECE): the gap between a model's confidence and its accuracy.

N is the number of images, C the number of classes, and B the number of weightings of the images.
"""

from __future__ import annotations

import torch

NUM_BINS = 15
"""Number of confidence bins of equal width in [0, 1], as in the paper (Guo et al. 2017)."""


def ece(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the expected calibration error: mean |accuracy - confidence| over bins, weighted by size.

    Lower is better.

    The confidence is the probability of the predicted class. Bin b of 15 contains the confidences above (b - 1) / 15,
    up to b / 15 inclusive, so an image on an edge belongs to the lower bin. With two classes the confidence is at least
    one half, so seven bins are empty.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, eq. 3.

    Args:
        probabilities: Probabilities (N, C), floating, without NaN, with row sums of 1. In a tie, the first class counts
            as predicted.
        labels: Class numbers (N,), int64.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        Errors (B,), float64, in [0, 1].

    Example:
        >>> ece(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]), torch.ones(2, 1).double())
        tensor([0.2500], dtype=torch.float64)
    """
    predicted = probabilities.argmax(dim=1)
    confidence = probabilities.gather(1, predicted[:, None])[:, 0].double()
    gaps = (predicted == labels).double() - confidence
    edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=torch.float64)[1:-1]
    sums = torch.zeros(NUM_BINS, weights.shape[1], dtype=torch.float64)
    sums.index_add_(0, torch.bucketize(confidence, edges), gaps[:, None] * weights)
    return sums.abs().sum(0) / weights.sum(0)
