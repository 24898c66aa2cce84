"""FedCross*, the variant of FedCross for unlike networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from medfl.contract import Capability, ReducesTo
from medfl.toolkit.lending import Circulating
from medfl.types import Meta


class FedCrossStar(Circulating):
    """Every site's own model visits one site in each round, is trained there with all its parameters, and comes home.

    The server draws the route and holds no model: copies go from site to site. The model of a site is the one that it
    began with, wherever it was trained, so networks may be unlike. A model that the route leaves at home is trained
    there. Where a host is away, or its training is not finite, the model goes on as it was; an owner that is away takes
    its model in when it is back. With partial participation the models of the participants circulate among them, and
    the others wait. A site without training data keeps its initial model.

    Scores at the moment ``trained`` are those of the model that was just trained at the site, whoever its owner is.

    When to use it: As the yardstick for `fedskd`, or where sites want unlike networks and trust each other with their
    models: each site's raw model reaches one other site in each round. By default it does N times the local work of
    FedAvg; ``p2p_scale = 1`` makes it comparable.

    Attributes:
        optimizer_state: ``travel`` sends the optimiser's state along with the model; ``reset`` starts it anew at each
            visit.

    Source: Weng, Cai, Zhou, FedSKD, arXiv 2503.18981, 2025, where it is the variant of FedCross for heterogeneous
    models.
    """

    name = "fedcross_star"
    family = "peer to peer"
    paper = "Weng et al., 2025"
    summary = "each site's own model is trained at another site in every round and comes home"
    supports = frozenset({Capability.DIFFERENT_NETWORKS, Capability.PEER_MESSAGES})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (
        ReducesTo("local", {"route": "identity", "p2p_scale": 1, "optimizer_state": "reset"}),
        ReducesTo(
            "local",
            {"route": "identity", "p2p_scale": 1, "optimizer_state": "travel"},
            {"optimizer_state": "persistent"},
        ),
    )

    optimizer_state: Literal["travel", "reset"] = "travel"

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the optimiser goes on."""
        return self.optimizer_state == "travel"
