"""Scores of numbers that are predicted. Several numbers of an image are scored one by one, then averaged."""

from __future__ import annotations

import torch


def mae(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean absolute error, in the unit of the targets. Lower is better.

    Args:
        outputs: (N, D), floating.
        targets: (N, D), floating.
        weights: (N, B), float64, not negative.

    Returns:
        (B,), float64, >= 0; NaN where all weights are 0.

    Example:
        >>> mae(torch.tensor([[1.0], [5.0]]), torch.tensor([[2.0], [2.0]]), torch.ones(2, 1).double())
        tensor([2.], dtype=torch.float64)
    """
    return _means((outputs.double() - targets).abs(), weights).mean(0)


def rmse(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Root of the mean squared error of each number, then their mean, in the unit of the targets. Lower is better.

    Args and Returns: As for `mae`.
    """
    return _means((outputs.double() - targets) ** 2, weights).sqrt().mean(0)


def r2(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Share of the targets' variance that is explained: 1 - mean squared error / variance.

    It is 1 for perfect outputs, and 0 for the targets' mean as each output; it has no lower bound.

    Args:
        outputs: (N, D), floating.
        targets: (N, D), floating.
        weights: (N, B), float64, not negative.

    Returns:
        (B,), float64, at most 1: the mean over those of the D numbers whose targets vary; NaN if none does.
    """
    errors = _means((outputs.double() - targets) ** 2, weights)
    scores = 1 - errors / _covariances(targets, targets, weights)
    return torch.where(_vary(targets, weights), scores, torch.nan).nanmean(0)


def pearson(outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Pearson's correlation of outputs and targets.

    Args:
        outputs: (N, D), floating.
        targets: (N, D), floating.
        weights: (N, B), float64, not negative.

    Returns:
        (B,), float64, in [-1, 1]: the mean over those of the D numbers whose outputs and targets both vary; NaN if none
        does.
    """
    spreads = [_covariances(values, values, weights).sqrt() for values in (outputs, targets)]
    scores = (_covariances(outputs, targets, weights) / spreads[0] / spreads[1]).clamp(-1, 1)
    return torch.where(_vary(outputs, weights) & _vary(targets, weights), scores, torch.nan).nanmean(0)


def _means(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted means (D, B) of values (N, D), float64."""
    return values.T @ weights / weights.sum(0)


def _covariances(first: torch.Tensor, second: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted covariances (D, B) of values (N, D); from deviations, so that a large mean costs no digits."""
    rows = []
    for a, b in zip(first.double().T, second.double().T):
        deviations = [column[:, None] - column @ weights / weights.sum(0) for column in (a, b)]
        rows.append((weights * deviations[0] * deviations[1]).sum(0) / weights.sum(0))
    return torch.stack(rows)


def _vary(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Whether values (N, D) differ among the images that count, (D, B), bool."""
    counted = weights > 0
    rows = []
    for column in values.T:
        lowest = torch.where(counted, column[:, None], torch.inf).amin(0)
        rows.append(lowest < torch.where(counted, column[:, None], -torch.inf).amax(0))
    return torch.stack(rows)
