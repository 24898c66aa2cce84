"""Local training, the reference that tells a hospital what it gains."""

from __future__ import annotations

from typing import Literal

from medfl.contract import Capability, Model, Reply, Request, Server, Site
from medfl.toolkit.personal import Personal


class Local(Personal):
    """Every site trains alone; nothing is exchanged.

    All sites train in every round, whatever the participation, so that each has rounds times epochs passes.

    When to use it: In every comparison, as the bar that a federation must clear at each site. A site with much data of
    its own kind may well do best by it.

    Attributes:
        init: ``shared`` starts all sites of one network from one model, ``own`` each from its own.
        optimizer_state: ``reset`` starts the optimiser anew each round, as most methods do, so that a comparison shows
            what sharing gains; ``persistent`` goes on with the one of the round before. Give ``persistent`` beside
            methods whose sites keep theirs, such as `fedskd`.
    """

    name = "local"
    family = "reference"
    paper = ""
    summary = "every site trains alone"
    supports = frozenset({Capability.DIFFERENT_NETWORKS, Capability.DP_SGD})

    init: Literal["shared", "own"] = "shared"
    optimizer_state: Literal["reset", "persistent"] = "reset"

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the optimiser goes on."""
        return self.optimizer_state == "persistent"

    def requests(self, server: Server) -> list[Request]:
        """To every site with data."""
        return [Request(name, "fit") for name in server.trainable()]

    def train(self, site: Site, request: Request) -> Reply:
        """Train the own model and keep it."""
        done, site.state.tensors = self.go_on(site, self.own(site))
        return Reply(log=done.log, trained={"personal": Model(site.network, done.after)})
