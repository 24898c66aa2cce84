"""The base of methods in which every site has a model of its own and the server has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from medfl.contract import Model, PayloadKind, Replies, Server, Site
from medfl.methods.averaging import Averaging
from medfl.methods.fit import FitResult
from medfl.training.optimizer_state import PREFIX as OPTIMIZER
from medfl.training.optimizer_state import split
from medfl.types import Tensors
from medfl.utils.tells import Tell
from medfl.utils.wire import prefixed


class Personal(Averaging):
    """Every site has a model of its own; the server has none and publishes nothing.

    What a site keeps from one training to the next stands in its state: the model's tensors under their own names and,
    where `keeps_optimizer` says so, those of its optimiser under ``optimizer/``.

    Attributes:
        init: ``shared`` starts all sites of one network from one model, ``own`` each from its own.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {}
    sends_meta: ClassVar[Mapping[str, Tell]] = {}
    unlike_networks: ClassVar[bool] = True

    init: Literal["shared", "own"] = "shared"

    # ---- what a method overrides

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the state of a model's optimiser is kept from one training to the next."""
        return False

    # ---- the contract

    def setup(self, server: Server) -> None:
        """Nothing: the server has no model."""

    def aggregate(self, server: Server, replies: Replies) -> None:
        """Nothing to average."""

    def publish(self, server: Server) -> Tensors:
        """Nothing to publish."""
        return {}

    def models(self, holder: Server | Site) -> dict[str, Model]:
        """A personal model at each site."""
        return {} if isinstance(holder, Server) else {"personal": Model(holder.network, split(self.own(holder))[0])}

    # ---- pieces

    def own(self, site: Site) -> Tensors:
        """What the site kept of its model, or the initial model."""
        return site.state.tensors or self.initial(site, site.name)

    def initial(self, site: Site, owner: str) -> Tensors:
        """The model that `owner` begins with, of the network that `site` trains."""
        return site.task.initial(site.settings.seed, site.network, owner if self.init == "own" else "")

    def go_on(self, site: Site, kept: Tensors, extra: Mapping[str, Any] | None = None) -> tuple[FitResult, Tensors]:
        """Train a model from where it was left; what the training made, and what to keep of it.

        Args:
            site: Gives data, network and settings.
            kept: As `own`.
            extra: For `Fit.extra`.
        """
        model, optimizer = split(kept)
        done = self.fit(site, model, optimizer if self.keeps_optimizer else None, extra)
        return done, done.after | prefixed(done.optimizer, OPTIMIZER)
