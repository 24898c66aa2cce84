"""Local training without federation: the reference for the gain of each site."""

from __future__ import annotations

from typing import Literal

from medfl.contract import Capability, Model, Reply, Request, Server, Site
from medfl.toolkit.personal import PersonalModels


class Local(PersonalModels):
    """Local training: each site trains a model on its own images, without any exchange.

    All sites train in every round, independent of the participation, so each site has rounds x local epochs passes over
    its images.

    When to use it: In every comparison, as the baseline that a federated method must exceed at each site. For a site
    with many images of a specific kind, local training may be the best method.

    Attributes:
        init: ``shared`` starts all sites with one network from the same model; ``own`` starts each site from a model of
            its own.
        optimizer_state: ``reset`` starts a new optimiser in each round, as most methods do, so that a comparison shows
            the effect of sharing. ``persistent`` continues with the optimiser state of the previous round; use it for
            comparisons with methods that do so, such as `fedskd`.
    """

    name = "local"
    family = "reference"
    paper = ""
    summary = "each site trains its own model, without any exchange"
    supports = frozenset({Capability.DIFFERENT_NETWORKS, Capability.DP_SGD})

    init: Literal["shared", "own"] = "shared"
    optimizer_state: Literal["reset", "persistent"] = "reset"

    @property
    def keeps_optimizer(self) -> bool:
        """True if the optimiser's state is kept from one training to the next."""
        return self.optimizer_state == "persistent"

    def requests(self, server: Server) -> list[Request]:
        """Return a request to train for each site with training images."""
        return [Request(name, "fit") for name in server.trainable()]

    def train(self, site: Site, request: Request) -> Reply:
        """Train the site's own model and store it."""
        done, site.state.tensors = self.continue_training(site, self.own(site))
        return Reply(log=done.log, trained={"personal": Model(site.network, done.after)})
