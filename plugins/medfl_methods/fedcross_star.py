"""FedCross*: the variant of FedCross for networks that differ between sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from medfl.contract import Capability, ReducesTo
from medfl.toolkit.circulating import CirculatingModels
from medfl.types import Meta


class FedCrossStar(CirculatingModels):
    """FedCross*: each site's model is trained at one other site per round and returned to its owner.

    The server draws the route and holds no model; model copies go directly between the sites. Every site owns the model
    that it started with, so networks may differ. A model that the route assigns to its owner is trained there. If the
    host does not reply, or its training diverges, the model stays unchanged. An owner that does not reply receives its
    model when it is available again. With partial participation, the models of the participants circulate among them;
    the other models wait. A site without training images keeps its initial model.

    Scores at the moment ``trained`` belong to the model that was just trained at the site, whichever site owns it.

    When to use it: As the baseline for `fedskd`, or where sites need different networks.

    Limits: Each site's raw model reaches another site in each round, so the sites must trust each other. With the
    default `p2p_scale`, local training costs N times as much as with `fedavg` for N sites; ``p2p_scale = 1`` makes the
    cost comparable.

    Attributes:
        optimizer_state: ``travel`` sends the optimiser's state along with the model; ``reset`` starts a new optimiser
            at each host.

    Source: Weng, Cai, Zhou, FedSKD, arXiv 2503.18981, 2025, where it is the variant of FedCross for heterogeneous
    models.
    """

    name = "fedcross_star"
    family = "peer to peer"
    paper = "Weng et al., 2025"
    summary = "each site's model is trained at another site in every round and returned to its owner"
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
        """True if the optimiser's state is sent along with the model and kept from one training to the next."""
        return self.optimizer_state == "travel"
