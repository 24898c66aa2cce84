"""Brier score of binary classification.

The other metrics are the metrics of two classes with the second one (1) as the positive class: specificity, balanced
accuracy, AUC and calibration error. Sensitivity is `medfl.metrics.confusion.recall`.

N is the number of images, and B the number of weightings of the images.
"""

from __future__ import annotations

import torch


def brier(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the Brier score, the mean squared error of the finding's probability. Lower is better.

    A model that always predicts the share p of the positives has the score p (1 - p); one that always predicts 0.5 has
    0.25.

    Source: Brier 1950, Verification of forecasts expressed in terms of probability, in the form for one class, which is
    half of the original score over both classes.

    Args:
        probabilities: Probabilities (N, 2) of absence and presence, floating, without NaN.
        labels: Labels (N,), int64, 0 or 1.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        Scores (B,), float64, in [0, 1]; NaN if all weights are 0.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([1, 1]), torch.ones(2, 1).double())
        tensor([0.1250], dtype=torch.float64)
    """
    errors = (probabilities[:, 1].double() - labels) ** 2
    return errors @ weights / weights.sum(0)
