"""Metrics of regression. Several predicted values of an image are evaluated separately, then averaged.

N is the number of images, D the number of predicted values, and B the number of weightings of the images.
"""

from __future__ import annotations

import torch


def mae(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the mean absolute error, in the unit of the targets. Lower is better.

    Args:
        outputs: Predictions (N, D), floating.
        targets: Targets (N, D), floating.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        Errors (B,), float64, >= 0; NaN if all weights are 0.

    Example:
        >>> mae(torch.tensor([[1.0], [5.0]]), torch.tensor([[2.0], [2.0]]), torch.ones(2, 1).double())
        tensor([2.], dtype=torch.float64)
    """
    return _weighted_means((outputs.double() - targets).abs(), weights).mean(0)


def rmse(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the root mean squared error of each value, then their mean, in the unit of the targets. Lower is better.

    Args:
        outputs: Predictions (N, D), floating.
        targets: Targets (N, D), floating.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        Errors (B,), float64, >= 0; NaN if all weights are 0.
    """
    return _weighted_means((outputs.double() - targets) ** 2, weights).sqrt().mean(0)


def r2(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the coefficient of determination, 1 - mean squared error / variance of the targets.

    It is 1 for perfect predictions and 0 if every prediction is the targets' mean; it has no lower bound.

    Args:
        outputs: Predictions (N, D), floating.
        targets: Targets (N, D), floating.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        Scores (B,), float64, at most 1: the mean over the values whose targets vary; NaN if no target varies.
    """
    errors = _weighted_means((outputs.double() - targets) ** 2, weights)
    scores = 1 - errors / _weighted_covariances(targets, targets, weights)
    return torch.where(_varies(targets, weights), scores, torch.nan).nanmean(0)


def pearson(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute Pearson's correlation between predictions and targets.

    Args:
        outputs: Predictions (N, D), floating.
        targets: Targets (N, D), floating.
        weights: Image weights (N, B), float64, >= 0.

    Returns:
        Correlations (B,), float64, in [-1, 1]: the mean over the values whose predictions and targets both vary; NaN if
        there is none.
    """
    spreads = [_weighted_covariances(values, values, weights).sqrt() for values in (outputs, targets)]
    scores = (_weighted_covariances(outputs, targets, weights) / spreads[0] / spreads[1]).clamp(-1, 1)
    return torch.where(_varies(outputs, weights) & _varies(targets, weights), scores, torch.nan).nanmean(0)


def _weighted_means(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute weighted means (D, B) of values (N, D), float64."""
    return values.T @ weights / weights.sum(0)


def _weighted_covariances(first: torch.Tensor, second: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute weighted covariances (D, B) of values (N, D), from deviations to keep precision with a large mean."""
    rows = []
    for a, b in zip(first.double().T, second.double().T):
        deviations = [column[:, None] - column @ weights / weights.sum(0) for column in (a, b)]
        rows.append((weights * deviations[0] * deviations[1]).sum(0) / weights.sum(0))
    return torch.stack(rows)


def _varies(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return whether values (N, D) differ among the images with positive weight, (D, B), bool."""
    counted = weights > 0
    rows = []
    for column in values.T:
        lowest = torch.where(counted, column[:, None], torch.inf).amin(0)
        rows.append(lowest < torch.where(counted, column[:, None], -torch.inf).amax(0))
    return torch.stack(rows)
