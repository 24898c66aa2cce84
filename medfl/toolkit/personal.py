"""Bases of methods that give every site a model of its own: the server has none, sites adapt the common one, or they
hold theirs near what they receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from medfl.contract import Capability, Model, PayloadKind, Replies, Reply, Request, Server, Site
from medfl.networks.norms import buffer_names
from medfl.toolkit.averaging import Averaging, Weighting
from medfl.toolkit.fit import Fit, FitResult
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.rounds import Due, Step
from medfl.training.loop import Batch
from medfl.training.optimizer_state import PREFIX as OPTIMIZER
from medfl.training.optimizer_state import split
from medfl.types import MODEL, Tensors
from medfl.utils.metadata import MetaField
from medfl.utils.wire import prefixed, select

ADAPT = "adapt"
"""Names the step, and where a site keeps what came out of it."""

OWN = "own/"
"""Where a site keeps a model that is held near what it receives."""


class Personal(Averaging):
    """Every site has a model of its own; the server has none and publishes nothing.

    What a site keeps from one training to the next stands in its state: the model's tensors under their own names and,
    where `keeps_optimizer` says so, those of its optimiser under ``optimizer/``.

    Attributes:
        init: ``shared`` starts all sites of one network from one model, ``own`` each from its own.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {}
    sends_meta: ClassVar[Mapping[str, MetaField]] = {}
    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DIFFERENT_NETWORKS})

    init: Literal["shared", "own"] = "shared"

    # ---- what a method overrides

    @property
    def keeps_optimizer(self) -> bool:
        """Whether the state of a model's optimiser is kept from one training to the next."""
        return False

    @property
    def weighting(self) -> Weighting:
        """``none``: the server averages no models."""
        return "none"

    # ---- the contract

    def setup(self, server: Server) -> None:
        """Nothing: the server has no model."""

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Nothing to average."""

    def publish(self, server: Server) -> Tensors:
        """Nothing to publish."""
        return {}

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """A personal model at each site."""
        return (
            {}
            if isinstance(participant, Server)
            else {"personal": Model(participant.network, split(self.own(participant))[0])}
        )

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


class LastStep(Averaging):
    """In the last round there is a further step: all sites with training images adapt the common model and keep it.

    Nothing is sent. What comes out is the site's personal model; before, and where it was away, the common model stands
    in. A run that is continued with more rounds adapts anew in its last one, from the common model.
    """

    @property
    def adapts(self) -> bool:
        """Whether there is such a step."""
        return True

    def adapt(self, site: Site, start: Tensors, sent: Tensors) -> FitResult:
        """What a site makes of the common model.

        Args:
            site: With training images.
            start: All tensors of the common model, at this site.
            sent: The order's tensors.
        """
        raise NotImplementedError

    def round_steps(self) -> tuple[Step, ...]:
        """Those of the parent; in the end all sites adapt."""
        return *super().round_steps(), Step(ADAPT, self.adapt_requests, self.adapt_and_keep, quorum=0, updates=())

    def schedule(self, server: Server, done: Sequence[Due]) -> Sequence[Due]:
        """Those of the parent; the last step comes in the last round."""
        last = self.adapts and server.round >= server.settings.rounds
        steps = [step.name for step in self.round_steps() if step.name != ADAPT or last]
        return [Due(name) for name in steps][len(done) :]

    def adapt_requests(self, server: Server) -> list[Request]:
        """To all sites, with the common model."""
        return [Request(name, ADAPT, self.publish(server)) for name in server.trainable()]

    def adapt_and_keep(self, site: Site, request: Request) -> Reply:
        """Adapt the common model and keep what comes out."""
        done = self.adapt(site, self.full_state(site, select(request.tensors, MODEL)), request.tensors)
        keep(site, f"{ADAPT}/", done.after)
        return Reply(log=done.log, trained={"personal": Model(site.network, done.after)})

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Those of the parent, and at each site its own."""
        models = super().models(participant)
        if isinstance(participant, Site):
            common = next(iter(models.values())).tensors
            models["personal"] = Model(participant.network, kept(participant, f"{ADAPT}/") or common)
        return models


class HeldNear(Averaging):
    """Each site trains a model of its own, which nobody overwrites, held near the parameters that it receives.

    A site steps along the gradient of F(v) + (pull/2) ||v - u||^2 over its trainable parameters, where v is its own
    model and u what it receives, and sends v - u. Buffers stay at their site. All begin with one model.
    """

    # ---- what a method overrides

    @property
    def pull(self) -> float:
        """How strongly a site's model is held near what it receives, >= 0; with 0 sites train alone."""
        raise NotImplementedError

    # ---- pieces

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Parameters."""
        buffers = buffer_names(model)
        return [name for name in super().shared(model, norm_sync) if name not in buffers]

    def start(self, site: Site, received: Tensors) -> Tensors:
        """The site's own model, at first the initial one."""
        return kept(site, OWN) or site.task.initial(site.settings.seed, site.network)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus (pull/2) ||v - u||^2."""
        loss = super().loss(fit, batch)
        if self.pull == 0:
            return loss
        received = select(fit.received, MODEL)
        terms = [(p - received[name]).square().sum() for name, p in fit.parameters() if name in received]
        return loss + 0.5 * self.pull * torch.stack(terms).sum()

    def after_fit(self, fit: Fit) -> None:
        """The site keeps its model."""
        keep(fit.site, OWN, cpu_state(fit.model))

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Each site's own; one that has not trained yet has what is published, over the initial model."""
        if isinstance(participant, Server):
            return {}
        tensors = kept(participant, OWN) or self.full_state(participant, select(participant.published, MODEL))
        return {"personal": Model(participant.network, tensors)}
