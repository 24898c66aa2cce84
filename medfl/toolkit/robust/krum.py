"""Robust rules that select replies close to other replies: Krum, Multi-Krum and Bulyan.

Sources: Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017, section 4; for Bulyan El Mhamdi, Guerraoui, Rouault,
ICML 2018, section 4. n is the number of replies and f the maximum number of attackers. The Krum score of a reply is the
sum of its squared distances to its n - f - 2 nearest replies.
"""

from __future__ import annotations

import torch

from medfl.contract import Replies, Server
from medfl.toolkit.robust.median import median
from medfl.toolkit.robust.rule import RobustRule
from medfl.toolkit.robust.updates import by_coordinate, floating_tensors, squared_distances, trainable_tensors
from medfl.toolkit.robust.weighing import WeighingRule
from medfl.types import Tensors


class Krum(WeighingRule):
    """The reply with the lowest Krum score."""

    @property
    def least_replies(self) -> int:
        """Number of replies that a round needs: 2f + 3."""
        return 2 * self.robust.f + 3

    def count(self, replies: int) -> int:
        """Return the number of replies to select."""
        return 1

    def weights(self, squares: torch.Tensor) -> torch.Tensor:
        """Return equal weights for the replies with the lowest Krum scores, and 0 for all others, (n + 1,).

        Args:
            squares: Squared distances (n + 1, n + 1) between n replies and, last, the centre, which Krum does not use.
        """
        n = len(squares) - 1
        among, best = squares[:n, :n], self.count(n)
        weights = torch.zeros(n + 1, dtype=torch.float64)
        chosen = krum_scores(among, self.robust.f).sort(stable=True).indices[:best]
        weights[chosen] = 1 / best
        return weights


class MultiKrum(Krum):
    """Mean of the n - f - 2 replies with the lowest Krum scores."""

    def count(self, replies: int) -> int:
        """Return the number of replies to select, n - f - 2."""
        return replies - self.robust.f - 2


class Bulyan(RobustRule):
    """Mean, per coordinate, of the n - 4f values closest to the median, over n - 2f selected replies."""

    @property
    def least_replies(self) -> int:
        """Number of replies that a round needs: 4f + 3."""
        return 4 * self.robust.f + 3

    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the aggregate: per coordinate, the mean near the median of the selected replies."""
        f, sites = self.robust.f, sorted(replies.meta)
        squares = squared_distances(replies, sites, trainable_tensors(server), {})
        chosen = sorted(bulyan_selection(squares[:-1, :-1], f))
        return by_coordinate(
            replies, floating_tensors(server), lambda rows: mean_near_median(rows[chosen], len(sites) - 4 * f)
        )


def krum_scores(squares: torch.Tensor, f: int, least: int = 0) -> torch.Tensor:
    """Return Krum's score of each of n replies: the sum of squared distances to its n - f - 2 nearest other replies.

    Args:
        squares: Squared distances (n, n).
        f: Maximum number of attackers (setting ``robust.f``).
        least: Minimum number of nearest replies in the sum.
    """
    nearest = max(len(squares) - f - 2, least)
    others = squares.clone().fill_diagonal_(torch.inf).sort(dim=1).values
    return others[:, :nearest].sum(dim=1)


def bulyan_selection(squares: torch.Tensor, f: int) -> list[int]:
    """Return the n - 2f replies that Bulyan selects: repeatedly the remaining reply with the lowest Krum score.

    Args:
        squares: Squared distances (n, n), with n >= 4f + 3.
        f: Maximum number of attackers (setting ``robust.f``).
    """
    left, chosen = list(range(len(squares))), list[int]()
    while len(chosen) < len(squares) - 2 * f:
        scores = krum_scores(squares[left][:, left], f, least=1)
        chosen.append(left.pop(int(scores.sort(stable=True).indices[0])))
    return chosen


def mean_near_median(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return the mean of the `count` values of each column that are closest to the column's median."""
    nearest = (rows - median(rows)).abs().sort(dim=0, stable=True).indices[:count]
    return rows.gather(0, nearest).mean(dim=0)
