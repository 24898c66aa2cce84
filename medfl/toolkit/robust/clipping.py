"""Robust rules that clip updates to a maximum norm: norm clipping, and centred clipping around the previous aggregate.

Sources: Sun, Kairouz, Suresh, McMahan, arXiv 1911.07963; Karimireddy, He, Jaggi, ICML 2021, Algorithm 2.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from medfl.contract import Replies, Server
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.robust.median import median_of_sorted
from medfl.toolkit.robust.weighing import WeighingRule, distances_from
from medfl.types import Tensors

CENTRE_PREFIX = "robust/"
"""Prefix of the previous aggregate in the server's auxiliary state, for `CentredClip`."""


class NormClip(WeighingRule):
    """Mean of the updates, each clipped to the norm `radius` (a setting), by default the median norm.

    With a radius that no update exceeds, it is the uniform mean.
    """

    options: ClassVar[frozenset[str]] = frozenset({"radius"})
    """Names of the optional settings that the rule supports."""

    @property
    def iterations(self) -> int:
        """Number of clipping iterations: one."""
        return 1

    def weights(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the weights (n + 1,) of n replies and the centre that clip each reply's distance from the centre.

        Args:
            squares: Squared distances (n + 1, n + 1) between n replies and, last, the centre.
        """
        n, radius = len(squares) - 1, self.robust.radius
        weights = torch.zeros(n + 1, dtype=torch.float64)
        weights[n] = 1.0
        for _ in range(self.iterations):
            lengths = distances_from(weights, squares)[:n]
            longest = median_of_sorted(lengths.sort().values) if radius is None else torch.tensor(radius).double()
            factors = torch.where(lengths > longest, longest / lengths, 1.0)
            weights = weights * (1 - factors.mean())
            weights[:n] += factors / n
        return weights


class CentredClip(NormClip):
    """Centred clipping: clipped differences of the replies from the previous aggregate are averaged and added to it.

    Each difference is clipped to `radius`. Clipping is repeated `iterations` times, by default once.
    """

    options: ClassVar[frozenset[str]] = frozenset({"iterations", "radius"})
    """Names of the optional settings that the rule supports."""

    @property
    def iterations(self) -> int:
        """Number of clipping iterations: the setting, by default one."""
        return 1 if self.robust.iterations is None else self.robust.iterations

    def centre(self, server: Server) -> Tensors:
        """Return the tensors of the centre by name: the previous aggregate."""
        return auxiliary_state(server, CENTRE_PREFIX)

    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the aggregate, and store it in the server's state for the next round."""
        value = super().aggregate(server, replies)
        set_auxiliary_state(
            server,
            CENTRE_PREFIX,
            {name: tensor.clone() for name, tensor in value.items() if tensor.is_floating_point()},
        )
        return value
