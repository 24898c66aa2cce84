"""Rules that look at each coordinate: the median and the trimmed mean (Yin, Chen, Ramchandran, Bartlett, ICML 2018)."""

from __future__ import annotations

import torch

from medfl.contract import Replies, Server
from medfl.toolkit.aggregation import mean_updates
from medfl.toolkit.robust.rule import RobustRule
from medfl.toolkit.robust.updates import by_coordinate, floats_of
from medfl.types import MODEL, Tensors


class Median(RobustRule):
    """The median of each number over the replies."""

    @property
    def least_replies(self) -> int:
        """2f + 1."""
        return 2 * self.robust.f + 1

    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the medians."""
        return by_coordinate(replies, floats_of(server), median)


class TrimmedMean(RobustRule):
    """The mean of each number over the replies without the f highest and f lowest; with f = 0 the uniform mean."""

    @property
    def least_replies(self) -> int:
        """2f + 1."""
        return 2 * self.robust.f + 1

    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the trimmed means."""
        f, sites = self.robust.f, sorted(replies.meta)
        if not f:
            return mean_updates(replies, {MODEL: dict.fromkeys(sites, 1 / len(sites))})[MODEL]
        return by_coordinate(replies, floats_of(server), lambda rows: trimmed_mean(rows, f))


def median(rows: torch.Tensor) -> torch.Tensor:
    """Return the median of each column, of an even count the mean of the middle two."""
    return middle(rows.sort(dim=0).values)


def middle(ordered: torch.Tensor) -> torch.Tensor:
    """Return the median of columns that are sorted."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def trimmed_mean(rows: torch.Tensor, f: int) -> torch.Tensor:
    """Return the mean of each column without its f highest and f lowest values."""
    return rows.sort(dim=0).values[f : len(rows) - f].mean(dim=0)
