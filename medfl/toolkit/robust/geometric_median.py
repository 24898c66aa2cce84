"""The geometric median of the replies (Pillutla, Kakade, Harchaoui, IEEE TSP 2022, Algorithm 2)."""

from __future__ import annotations

from typing import ClassVar

import torch

from medfl.toolkit.robust.weighing import WeighingRule, distances_from

SMOOTHING = 1e-6
"""Least distance in the weights (Pillutla et al., section IV)."""


class GeometricMedian(WeighingRule):
    """The point with the least sum of distances to the replies, after `iterations` steps of Weiszfeld, by default 4.

    Without a step it is the uniform mean.
    """

    options: ClassVar[frozenset[str]] = frozenset({"iterations"})

    @property
    def least_replies(self) -> int:
        """2f + 1."""
        return 2 * self.robust.f + 1

    def weights(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the weights of the last step."""
        n = len(squares) - 1
        weights = torch.zeros(n + 1, dtype=torch.float64)
        weights[:n] = 1 / n
        for _ in range(4 if self.robust.iterations is None else self.robust.iterations):
            pulls = 1 / distances_from(weights, squares)[:n].clamp(min=SMOOTHING)
            weights[:n] = pulls / pulls.sum()
        return weights
