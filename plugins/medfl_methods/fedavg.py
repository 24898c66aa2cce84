"""FedAvg."""

from __future__ import annotations

from typing import Literal

from medfl.contract import Capability
from medfl.toolkit.averaging import Averaging
from medfl.types import Meta


class FedAvg(Averaging):
    """Federated averaging.

    Each round the participants train from the server's model; the new model is the mean of theirs, weighted by their
    numbers of training images among the participants. With one site and a fresh optimiser each round this is
    `centralized`.

    When to use it: First. It is cheap, it has no setting to tune, and every other method should be compared with it. It
    loses ground where sites differ much, in their shares of classes or in how their images look.

    Attributes:
        weights: ``size`` weighs a site by its number of training images among the participants, ``uniform`` equally.
            Under a privacy setting sizes stay at home and the weights are uniform.

    Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, Algorithm 1.
    """

    name = "fedavg"
    family = "averaging"
    paper = "McMahan et al., AISTATS 2017"
    summary = "the mean of the sites' models, weighted by their numbers of images"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    weights: Literal["size", "uniform"] = "size"

    def weight(self, meta: Meta) -> float:
        """The site's size, or 1."""
        return super().weight(meta) if self.weights == "size" else 1.0
