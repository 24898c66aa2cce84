"""The base class of robust rules whose value is a weighted sum of the replies.

The weights depend on the distances between replies alone. So these are computed once, n x n, and the sum is that of
`mean_updates`. Where a rule leaves out nothing, that is the uniform mean bit by bit.
"""

from __future__ import annotations

from abc import abstractmethod

import torch

from medfl.contract import Replies, Server
from medfl.toolkit.aggregation import mean_updates
from medfl.toolkit.robust.rule import RobustRule
from medfl.toolkit.robust.updates import parameters_of, squared_distances
from medfl.types import MODEL, Tensors


class WeighingRule(RobustRule):
    """A robust rule whose value is a weighted sum of the replies, and of a centre."""

    @abstractmethod
    def weights(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the weights of the replies and, last, of the centre, (n + 1,) float64.

        Args:
            squares: (n + 1, n + 1) float64, squared distances of n replies and, last, of the centre.
        """

    def centre(self, server: Server) -> Tensors:
        """Return the centre by name; a tensor that it lacks is zero, and by default all are."""
        return {}

    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the weighted sum."""
        sites, centre = sorted(replies.meta), self.centre(server)
        weights = self.weights(squared_distances(replies, sites, parameters_of(server), centre))
        value = mean_updates(replies, {MODEL: dict(zip(sites, weights[:-1].tolist(), strict=True))})[MODEL]
        if remaining := float(weights[-1]):
            for name, tensor in value.items():
                if name in centre:
                    tensor.add_(centre[name], alpha=remaining)
        return value


def distances_from(weights: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Return the distances of points from their weighted sum; the weights sum to 1.

    |sum w_j x_j - x_i|^2 = sum w_j d_ij - (1/2) sum w_j w_k d_jk, with squared distances d.
    """
    return (squares @ weights - weights @ squares @ weights / 2).clamp(min=0).sqrt()
