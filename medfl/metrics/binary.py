"""Scores of a finding that is there or not, beside those of two classes.

Sensitivity is `medfl.metrics.confusion.recall`; specificity, balanced accuracy, AUC and calibration error are those of
two classes, of which the second one (1) is the positive one.
"""

from __future__ import annotations

import torch


def brier(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the probability of the finding. Lower is better.

    Of a model that always says the share p of the positives it is p (1 - p); of one that always says 0.5 it is 0.25.

    Source: Brier 1950, Verification of forecasts expressed in terms of probability, in the form for one class, which is
    half of the original one over both.

    Args:
        probabilities: (N, 2), floating, without NaN: of its absence and its presence.
        labels: (N,), int64, 0 or 1.
        weights: (N, B), float64, not negative.

    Returns:
        (B,), float64, in [0, 1]; NaN where all weights are 0.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([1, 1]), torch.ones(2, 1).double())
        tensor([0.1250], dtype=torch.float64)
    """
    errors = (probabilities[:, 1].double() - labels) ** 2
    return errors @ weights / weights.sum(0)
