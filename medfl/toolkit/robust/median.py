"""Coordinate-wise robust rules: median and trimmed mean (Yin, Chen, Ramchandran, Bartlett, ICML 2018).

f is the maximum number of attackers in a round. Rows are replies, and columns are coordinates of the updates.
"""

from __future__ import annotations

import torch

from medfl.contract import Replies, Server
from medfl.toolkit.aggregation import mean_updates
from medfl.toolkit.robust.rule import RobustRule
from medfl.toolkit.robust.updates import by_coordinate, floating_tensors
from medfl.types import MODEL_PREFIX, Tensors


class Median(RobustRule):
    """Coordinate-wise median of the replies."""

    @property
    def least_replies(self) -> int:
        """Number of replies that a round needs: 2f + 1."""
        return 2 * self.robust.f + 1

    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the aggregate of the floating tensors: the coordinate-wise median."""
        return by_coordinate(replies, floating_tensors(server), median)


class TrimmedMean(RobustRule):
    """Coordinate-wise mean without the f highest and f lowest values; with f = 0 the uniform mean."""

    @property
    def least_replies(self) -> int:
        """Number of replies that a round needs: 2f + 1."""
        return 2 * self.robust.f + 1

    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the aggregate of the floating tensors: the coordinate-wise trimmed mean."""
        f, sites = self.robust.f, sorted(replies.meta)
        if not f:
            return mean_updates(replies, {MODEL_PREFIX: dict.fromkeys(sites, 1 / len(sites))})[MODEL_PREFIX]
        return by_coordinate(replies, floating_tensors(server), lambda rows: trimmed_mean(rows, f))


def median(rows: torch.Tensor) -> torch.Tensor:
    """Return the median of each column; for an even number of rows, the mean of the two middle values."""
    return median_of_sorted(rows.sort(dim=0).values)


def median_of_sorted(ordered: torch.Tensor) -> torch.Tensor:
    """Return the median of columns that are already sorted."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def trimmed_mean(rows: torch.Tensor, f: int) -> torch.Tensor:
    """Return the mean of each column without its f highest and f lowest values."""
    return rows.sort(dim=0).values[f : len(rows) - f].mean(dim=0)
