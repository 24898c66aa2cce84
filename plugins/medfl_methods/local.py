"""Local training, the reference that tells a hospital what it gains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from medfl.averaging import Averaging
from medfl.contract import Kind, Model, Order, Plan, Replies, Reply, Server, Site, Tensors


class Local(Averaging):
    """Every site trains alone; nothing is exchanged.

    All sites train in every round, whatever the participation, so that each has rounds times epochs passes. The
    optimiser starts anew each round, as in every method.

    When to use it: In every comparison, as the bar that a federation must clear at each site. A site with much data of
    its own kind may well do best by it.

    Attributes:
        init: ``shared`` starts all sites of one network from one model, ``own`` each from its own.
    """

    sends: ClassVar[Mapping[str, Kind]] = {}
    tells: ClassVar[Mapping[str, Literal["public", "private"]]] = {}
    unlike_networks: ClassVar[bool] = True

    init: Literal["shared", "own"] = "shared"

    def setup(self, server: Server) -> None:
        """Nothing: the server has no model."""

    def plan(self, server: Server) -> Plan | None:
        """Every site with data trains."""
        if server.rounds_done >= server.settings.rounds:
            return None
        orders = [Order(name, "fit") for name in server.trainable()]
        return Plan(server.round, orders, quorum=min(server.settings.min_replies, max(len(orders), 1)))

    def work(self, site: Site, order: Order) -> Reply:
        """Train the own model and keep it."""
        done = self.fit(site, self.own(site))
        site.state.tensors = done.after
        return Reply(log=done.log, trained=Model(site.network, done.after))

    def fold(self, server: Server, replies: Replies) -> None:
        """Nothing to fold."""

    def publish(self, server: Server) -> Tensors:
        """Nothing to publish."""
        return {}

    def models(self, holder: Server | Site) -> dict[str, Model]:
        """A personal model at each site."""
        return {} if isinstance(holder, Server) else {"personal": Model(holder.network, self.own(holder))}

    def own(self, site: Site) -> Tensors:
        """The site's model so far, or its initial one."""
        if site.state.tensors:
            return site.state.tensors
        owner = site.name if self.init == "own" else ""
        return site.task.initial(site.settings.seed, site.network, owner)
