"""Base classes of methods with a personal model at each site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from medfl.contract import Capability, Model, PayloadKind, Replies, Reply, Request, Server, Site
from medfl.networks.norms import buffer_names
from medfl.toolkit.averaging import Averaging, Weighting
from medfl.toolkit.fit import Fit, FitResult
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.rounds import RoundStep, ScheduledStep
from medfl.training.loop import Batch
from medfl.training.optimizer_state import OPTIMIZER_PREFIX, split_optimizer_state
from medfl.types import MODEL_PREFIX, Tensors
from medfl.utils.metadata import MetaField
from medfl.utils.wire import prefixed, select

ADAPTATION_STEP = "adapt"
"""Name of the step in the last round in which sites adapt the common model, and prefix of the adapted model in a site's
state."""

OWN_MODEL_PREFIX = "own/"
"""Prefix of the personal model of `ProximalPersonalModels` in a site's auxiliary state."""


class PersonalModels(Averaging):
    """A personal model at each site; the server has no model and publishes nothing.

    A site's state stores the model's tensors under their own names and, if `keeps_optimizer` is true, the optimiser's
    tensors under ``optimizer/``.

    Attributes:
        init: ``shared`` starts all sites with the same network from the same tensors, ``own`` each site from different
            ones.
    """

    sends: ClassVar[Mapping[str, PayloadKind]] = {}
    """Mapping from each name prefix of sent tensors to the kind of these tensors: sites send none."""
    sends_meta: ClassVar[Mapping[str, MetaField]] = {}
    """Mapping from each metadata key of a reply to its type and its disclosure: replies have none."""
    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DIFFERENT_NETWORKS})
    """Capabilities of the method: sites may have different networks."""

    init: Literal["shared", "own"] = "shared"

    # ---- methods to override

    @property
    def keeps_optimizer(self) -> bool:
        """True if the optimiser's state is kept from one training to the next."""
        return False

    @property
    def weighting(self) -> Weighting:
        """Weighting of the sites' models: ``none``, because the server averages no models."""
        return "none"

    # ---- the contract

    def setup(self, server: Server) -> None:
        """Do nothing: the server has no model."""

    def aggregate_updates(self, server: Server, replies: Replies) -> None:
        """Do nothing: the server averages no models."""

    def publish(self, server: Server) -> Tensors:
        """Return the tensors that every site needs for its evaluation: none, because each has its own model."""
        return {}

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant by kind: a ``personal`` model at each site, none at the server."""
        return (
            {}
            if isinstance(participant, Server)
            else {"personal": Model(participant.network, split_optimizer_state(self.own(participant))[0])}
        )

    # ---- helpers for subclasses

    def own(self, site: Site) -> Tensors:
        """Return the stored tensors of the site's model and optimiser, or the initial tensors."""
        return site.state.tensors or self.initial(site, site.name)

    def initial(self, site: Site, owner: str) -> Tensors:
        """Return the initial tensors of `owner`'s model, for the network that `site` trains."""
        return site.task.initial(site.settings.seed, site.network, owner if self.init == "own" else "")

    def continue_training(
        self, site: Site, stored: Tensors, extra: Mapping[str, Any] | None = None
    ) -> tuple[FitResult, Tensors]:
        """Continue the training of a model; return the result, and the tensors to store.

        Args:
            site: The site with its data, network and settings.
            stored: Tensors of the model and its optimiser, as from `own`.
            extra: Initial values of `Fit.extra`.
        """
        model, optimizer = split_optimizer_state(stored)
        done = self.fit(site, model, optimizer if self.keeps_optimizer else None, extra)
        return done, done.after | prefixed(done.optimizer, OPTIMIZER_PREFIX)


class FinalAdaptation(Averaging):
    """Base class of methods with a further step in the last round, in which sites adapt the common model.

    All sites with training images adapt it and store the result.
    Sites send nothing in this step. The adapted model is the site's personal model. Before this step, and at a site
    that was unavailable for it, the common model is the personal one. A run that is continued with more rounds adapts
    the common model again in its new last round.
    """

    @property
    def adapts(self) -> bool:
        """True if the last round has the adaptation step."""
        return True

    def adapt(self, site: Site, start: Tensors, sent: Tensors) -> FitResult:
        """Adapt the common model at a site.

        Args:
            site: A site with training images.
            start: All tensors of the common model at this site.
            sent: Tensors of the request.
        """
        raise NotImplementedError

    def round_steps(self) -> tuple[RoundStep, ...]:
        """Return the steps of the parent class and the adaptation step."""
        return *super().round_steps(), RoundStep(
            ADAPTATION_STEP, self.adapt_requests, self.adapt_and_keep, quorum=0, updates=()
        )

    def remaining_steps(self, server: Server, done: Sequence[ScheduledStep]) -> Sequence[ScheduledStep]:
        """Return the remaining steps; the adaptation step is only in the last round."""
        last = self.adapts and server.round >= server.settings.rounds
        steps = [step.name for step in self.round_steps() if step.name != ADAPTATION_STEP or last]
        return [ScheduledStep(name) for name in steps][len(done) :]

    def adapt_requests(self, server: Server) -> list[Request]:
        """Return requests with the common model to all sites that have training data."""
        return [Request(name, ADAPTATION_STEP, self.publish(server)) for name in server.trainable()]

    def adapt_and_keep(self, site: Site, request: Request) -> Reply:
        """Adapt the common model, and store the result in the site's state.

        The adaptation follows the last round of a learning-rate schedule, so it has the constant learning rate.
        """
        constant = replace(site, task=replace(site.task, step_rates=None))
        done = self.adapt(constant, self.full_state(site, select(request.tensors, MODEL_PREFIX)), request.tensors)
        set_auxiliary_state(site, f"{ADAPTATION_STEP}/", done.after)
        return Reply(log=done.log, trained={"personal": Model(site.network, done.after)})

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of the parent class and, at each site, the adapted model as ``personal``."""
        models = super().models(participant)
        if isinstance(participant, Site):
            common = next(iter(models.values())).tensors
            models["personal"] = Model(
                participant.network, auxiliary_state(participant, f"{ADAPTATION_STEP}/") or common
            )
        return models


class ProximalPersonalModels(Averaging):
    """Base class of methods with a personal model at each site, which a proximal term pulls to the received parameters.

    A site takes gradient steps on F(v) + (pull/2) ||v - u||^2 over its trainable parameters, where v is its own model
    and u the received parameters, and sends v - u. The server never overwrites v. Buffers stay at their site. All sites
    start from the same model.
    """

    # ---- methods to override

    @property
    def pull(self) -> float:
        """Weight of the proximal term, >= 0; with 0 each site trains locally."""
        raise NotImplementedError

    # ---- proximal training

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the exchanged tensors: parameters, without buffers."""
        buffers = buffer_names(model)
        return [name for name in super().shared_names(model, norm_sync) if name not in buffers]

    def start(self, site: Site, received: Tensors) -> Tensors:
        """Return the tensors that training starts from: the site's own model, or the initial one at first."""
        return auxiliary_state(site, OWN_MODEL_PREFIX) or site.task.initial(site.settings.seed, site.network)

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Compute the task's loss plus (pull/2) ||v - u||^2, with own parameters v and received ones u."""
        loss = fit.task_loss(batch)
        if self.pull == 0:
            return loss
        received = select(fit.received, MODEL_PREFIX)
        terms = [(p - received[name]).square().sum() for name, p in fit.parameters() if name in received]
        return loss + 0.5 * self.pull * torch.stack(terms).sum()

    def after_fit(self, fit: Fit) -> None:
        """Store the model in the site's state."""
        set_auxiliary_state(fit.site, OWN_MODEL_PREFIX, cpu_state(fit.model))

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return each site's own model; before its first training, the initial model with the published parameters."""
        if isinstance(participant, Server):
            return {}
        tensors = auxiliary_state(participant, OWN_MODEL_PREFIX) or self.full_state(
            participant, select(participant.published, MODEL_PREFIX)
        )
        return {"personal": Model(participant.network, tensors)}
