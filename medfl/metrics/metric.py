"""Common interface of metrics: one score for each of several weightings of the same images, as resampling needs it.

N is the number of images, C the number of classes, and B the number of weightings of the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from medfl.metrics.confusion import equal_weights, is_scorable, weighted_confusions

WeightedScore = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Function that computes scores (B,), float64.

Its arguments are probabilities (N, C) without NaN, labels (N,), int64, and image weights (N, B), float64.
"""


@dataclass(frozen=True)
class Metric:
    """Metric of a classifier with optional image weights. A call computes it with equal weights.

    Attributes:
        score: Function that computes the weighted metric for at least one image.
    """

    score: WeightedScore

    def __call__(self, probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
        """Compute the metric of softmax probabilities.

        Args:
            probabilities: Probabilities (N, C), floating.
            labels: Class numbers (N,), int64.
            num_classes: Number of classes C.

        Returns:
            The score; NaN if it is undefined: without images, with a NaN probability, and as the metric defines.

        Raises:
            ContractError: If shapes or labels don't match.
        """
        return float(self.weighted(probabilities, labels, num_classes, equal_weights(labels))[0])

    def weighted(
        self, probabilities: torch.Tensor, labels: torch.Tensor, num_classes: int, weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute the metric with image weights.

        Integer weights give the metric of data in which each image is repeated that often.

        Args:
            probabilities: Probabilities (N, C), floating.
            labels: Class numbers (N,), int64.
            num_classes: Number of classes C.
            weights: Image weights (N, B), float64, >= 0, for B weightings.

        Returns:
            Scores (B,), float64; NaN if undefined.

        Raises:
            ContractError: If shapes or labels don't match.
        """
        if not is_scorable(probabilities, labels, num_classes):
            return torch.full((weights.shape[1],), math.nan, dtype=torch.float64)
        return self.score(probabilities, labels, weights)


def confusion_metric(score: Callable[[torch.Tensor], torch.Tensor]) -> Metric:
    """Create a metric from a function of confusion matrices.

    Args:
        score: Function that maps matrices (..., C, C), float64, to scores (...).
    """

    def weighted_score(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return score(weighted_confusions(probabilities, labels, weights))

    return Metric(weighted_score)
