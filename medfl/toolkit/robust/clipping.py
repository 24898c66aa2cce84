"""Rules that cut updates to a length: clipping of norms, and clipping around the last value.

Sources: Sun, Kairouz, Suresh, McMahan, arXiv 1911.07963; Karimireddy, He, Jaggi, ICML 2021, Algorithm 2.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from medfl.contract import Replies, Server
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.robust.median import middle
from medfl.toolkit.robust.weighing import WeighingRule, distances_from
from medfl.types import Tensors

CENTRE = "robust/"
"""Prefix of the tensors of the last value, which the server keeps for `CentredClip`."""


class NormClip(WeighingRule):
    """The mean of updates that are cut to the length `radius`, by default the median length.

    With a radius that no update exceeds it is the uniform mean.
    """

    options: ClassVar[frozenset[str]] = frozenset({"radius"})

    @property
    def iterations(self) -> int:
        """Number of times that the replies are cut around the sum."""
        return 1

    def weights(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the weights that cut each reply to its distance from the centre."""
        n, radius = len(squares) - 1, self.robust.radius
        weights = torch.zeros(n + 1, dtype=torch.float64)
        weights[n] = 1.0
        for _ in range(self.iterations):
            lengths = distances_from(weights, squares)[:n]
            longest = middle(lengths.sort().values) if radius is None else torch.tensor(radius).double()
            factors = torch.where(lengths > longest, longest / lengths, 1.0)
            weights = weights * (1 - factors.mean())
            weights[:n] += factors / n
        return weights


class CentredClip(NormClip):
    """The last value plus the mean of the differences to it, each cut to `radius`.

    This is done `iterations` times, by default once.
    """

    options: ClassVar[frozenset[str]] = frozenset({"iterations", "radius"})

    @property
    def iterations(self) -> int:
        """Number of times that the replies are cut around the sum."""
        return 1 if self.robust.iterations is None else self.robust.iterations

    def centre(self, server: Server) -> Tensors:
        """Return the last value."""
        return kept(server, CENTRE)

    def aggregate(self, server: Server, replies: Replies) -> Tensors:
        """Return the value, and keep it in the server's state."""
        value = super().aggregate(server, replies)
        keep(server, CENTRE, {name: tensor.clone() for name, tensor in value.items() if tensor.is_floating_point()})
        return value
