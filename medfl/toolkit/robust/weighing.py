"""Base class of robust rules whose result is a weighted sum of the replies.

The weights depend only on the distances between the n replies and a centre, a point that a rule may choose, such as the
previous aggregate. The distances are computed once, and `mean_updates`
computes the sum. A rule that excludes nothing gives the uniform mean bit by bit.
"""

from __future__ import annotations

from abc import abstractmethod

import torch

from medfl.contract import Replies, Server
from medfl.toolkit.aggregation import mean_updates
from medfl.toolkit.robust.rule import RobustRule
from medfl.toolkit.robust.updates import squared_distances, trainable_tensors
from medfl.types import MODEL_PREFIX, Tensors


class WeighingRule(RobustRule):
    """Robust rule whose result is a weighted sum of the replies and a centre."""

    @abstractmethod
    def weights(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the weights (n + 1,), float64, of n replies and, last, the centre.

        Args:
            squares: Squared distances (n + 1, n + 1), float64, between n replies and, last, the centre.
        """

    def centre(self, server: Server) -> Tensors:
        """Return the tensors of the centre by name; a missing tensor counts as zeros. By default the centre is zero."""
        return {}

    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the aggregate of the floating tensors: the weighted sum of the replies and the centre."""
        sites, centre = sorted(replies.meta), self.centre(server)
        weights = self.weights(squared_distances(replies, sites, trainable_tensors(server), centre))
        value = mean_updates(replies, {MODEL_PREFIX: dict(zip(sites, weights[:-1].tolist(), strict=True))})[
            MODEL_PREFIX
        ]
        if remaining := float(weights[-1]):
            for name, tensor in value.items():
                if name in centre:
                    tensor.add_(centre[name], alpha=remaining)
        return value


def distances_from(weights: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Return the distance of each point x_i from the weighted sum of all points, given their squared distances d.

    The weights w sum to 1. The formula is

    |sum w_j x_j - x_i|^2 = sum w_j d_ij - (1/2) sum w_j w_k d_jk.
    """
    return (squares @ weights - weights @ squares @ weights / 2).clamp(min=0).sqrt()
