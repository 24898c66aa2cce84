"""Geometric median of the replies (Pillutla, Kakade, Harchaoui, IEEE TSP 2022, Algorithm 2)."""

from __future__ import annotations

from typing import ClassVar

import torch

from medfl.toolkit.robust.weighing import WeighingRule, distances_from

SMOOTHING = 1e-6
"""Lower bound of the distances in Weiszfeld's weights (Pillutla et al., section IV)."""


class GeometricMedian(WeighingRule):
    """Geometric median of the replies: the point with the smallest sum of distances to them, by Weiszfeld's algorithm.

    It takes `iterations` steps, by default 4. With 0 steps it is the uniform mean.
    """

    options: ClassVar[frozenset[str]] = frozenset({"iterations"})
    """Names of the optional settings that the rule supports."""

    @property
    def least_replies(self) -> int:
        """Number of replies that a round needs: 2f + 1."""
        return 2 * self.robust.f + 1

    def weights(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the weights (n + 1,) of n replies after the last Weiszfeld step, and last a weight of 0.

        All weighing rules get the distances to a centre too; this rule has no use for a centre, so its weight is 0.

        Args:
            squares: Squared distances (n + 1, n + 1) between n replies and, last, the centre, here zero.
        """
        n = len(squares) - 1
        weights = torch.zeros(n + 1, dtype=torch.float64)
        weights[:n] = 1 / n
        for _ in range(4 if self.robust.iterations is None else self.robust.iterations):
            pulls = 1 / distances_from(weights, squares)[:n].clamp(min=SMOOTHING)
            weights[:n] = pulls / pulls.sum()
        return weights
