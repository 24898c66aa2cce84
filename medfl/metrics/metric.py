"""The one form of all metrics: a score for each of many weightings of the same images, as resampling needs it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from medfl.metrics.confusion import once, scorable, weighted_confusions

WeightedScore = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Scores (B,), float64, of probabilities (N, C) without NaN, labels (N,), int64, and weights (N, B), float64."""


@dataclass(frozen=True)
class Metric:
    """A score of a classifier, for any weights of the images; called, it is the score in which each counts once.

    Attributes:
        score: Computes it; there is at least one image.
    """

    score: WeightedScore

    def __call__(self, probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
        """The score of softmax probabilities.

        Args:
            probabilities: (N, C), floating.
            labels: (N,), int64.
            num_classes: C.

        Returns:
            NaN where it is not defined: without images, with a NaN probability, and as the metric says.

        Raises:
            ContractError: If shapes or labels don't fit.
        """
        return float(self.weighted(probabilities, labels, num_classes, once(labels))[0])

    def weighted(
        self, probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int, weights: torch.Tensor
    ) -> torch.Tensor:
        """The score where each image counts as often as its weight says.

        With whole numbers it is the score of the data in which each image is repeated that often.

        Args:
            probabilities: (N, C), floating.
            labels: (N,), int64.
            num_classes: C.
            weights: (N, B), float64, not negative: B weightings.

        Returns:
            (B,), float64; NaN where it is not defined.

        Raises:
            ContractError: If shapes or labels don't fit.
        """
        if not scorable(probabilities, labels, num_classes):
            return torch.full((weights.shape[1],), math.nan, dtype=torch.float64)
        return self.score(probabilities, labels, weights)


def of_confusion(score: Callable[[torch.Tensor], torch.Tensor]) -> Metric:
    """The metric that is a function of confusion matrices.

    Args:
        score: Of matrices (..., C, C), float64, to (...).
    """

    def weighted_score(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return score(weighted_confusions(probabilities, labels, weights))

    return Metric(weighted_score)
