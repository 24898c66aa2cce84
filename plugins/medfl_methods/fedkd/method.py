"""FedKD as a method class: joint training of mentor and mentee, and truncation of updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional as F

from medfl.contract import Capability, Filter, Model, Need, Reply, Request, Server, Site
from medfl.networks.parts import feature_count, features_and_logits
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.co_training import CompanionModel
from medfl.toolkit.fit import Fit
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import distillation
from medfl.toolkit.model_transfer import with_host_settings
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.training.checkpoints import ModelPart, TrainingPart
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors
from medfl.utils.rng import seeded_generators
from medfl_methods.fedkd.low_rank import LowRankFactors, truncate_rank

MENTOR_PREFIX, ADAPTER_PREFIX = "mentor/", "adapter/"
"""Prefixes of tensor names in a site's state. `MENTOR_PREFIX`: mentor; `ADAPTER_PREFIX`: linear layer from the mentee's
to the mentor's features."""

MIN_TOTAL_LOSS = 1e-8
"""Lower limit of the sum of both losses, by which the distillation terms are divided."""


class FedKD(Averaging):
    """Each site has a mentor model that never leaves it; mentor and a shared mentee model teach each other.

    A site truncates each matrix of the mentee's update to the smallest rank that keeps a fraction T of its energy (the
    sum of squared singular values), and sends the factors. T increases from `energy_start` to `energy_end` within
    `over` rounds. A matrix is sent unchanged if its factors would be larger. The server's mean, in which all sites have
    the same weight, is truncated in the same way before it is added, as in the paper's down-link. Requests still
    contain the whole mentee (our choice), because a site that was unavailable needs all of it. With both energies 1
    nothing is truncated, and the mentee is the mean of the sites' mentees. Ranks depend on the data, so runs with a
    privacy setting cannot use factors: set both energies to 1.

    Update rule:
        The mentee has the run's network, the mentor the network of the site (`networks_by_site`). Each batch trains
        both. The mentee minimises

            L(mentee) + [KL(mentor || mentee) + MSE(mentor's features, W mentee's features)] / S

        and the mentor the same with exchanged roles. S is the sum of both task losses. S and the teaching model of each
        term get no gradient, so each loss trains only its own model. The linear layer W belongs to the site and is
        trained with the mentee. Batches that are too small for the mentor's batch norm train only the mentee.

    When to use it: Use it if sites want a large network of their own, or different networks, and can send little data.
    A site trains both networks.

    Attributes:
        hidden_loss: Whether the features of mentor and mentee are compared, too (the MSE terms); this needs networks
            with a linear layer as head.
        energy_start: Fraction T at the start, in (0, 1].
        energy_end: Fraction T after `over` rounds, in (0, 1].
        over: Number of rounds in which T increases, >= 1. In the paper these are the rounds of the run; here a run can
            be extended.
        compress: Updates that are truncated: ``up``, only those from sites to server; ``both``, also the server's mean
            update.
        max_rank: Maximum rank of a truncated matrix, >= 1; None sets no limit.
        mentee_rate: Learning rate of the mentee as a multiple of the task's, > 0.

    Source: Wu, Wu, Lyu, Huang, Xie, Nature Communications 2022, equations 1 to 8. Kernels are matrices of their output
    channels, and the rank is chosen by the squares; the released codes differ in both.
    """

    name = "fedkd"
    family = "personal"
    paper = "Wu et al., Nature Communications 2022"
    summary = "a mentor at each site and a shared mentee teach each other; updates are sent as low-rank factors"
    supports = frozenset({Capability.DIFFERENT_NETWORKS, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"linear_head", "soft_targets"})
    """Properties that the task, its data and its networks must have for this method."""
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}

    hidden_loss: bool = True
    energy_start: float = Field(0.95, gt=0, le=1)
    energy_end: float = Field(0.98, gt=0, le=1)
    over: int = Field(100, ge=1)
    compress: Literal["both", "up"] = "both"
    max_rank: int | None = Field(None, ge=1)
    mentee_rate: float = Field(1.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_max_rank(self) -> FedKD:
        """Raise if `max_rank` is set although nothing is truncated."""
        if self.max_rank is not None and not self.truncates:
            raise ValueError("max_rank requires an energy below 1: with both energies at 1 nothing is truncated")
        return self

    @property
    def active_needs(self) -> frozenset[Need]:
        """Properties that task and networks must have with these settings; a linear head only for `hidden_loss`."""
        return self.needs if self.hidden_loss else frozenset({"soft_targets"})

    @property
    def truncates(self) -> bool:
        """True if updates are truncated in any round."""
        return min(self.energy_start, self.energy_end) < 1

    def filters(self) -> tuple[Filter, ...]:
        """Return the filters that change messages before sending: matrices of low rank become factors.

        The result is empty if no update is truncated.
        """
        return (LowRankFactors(),) if self.truncates else ()

    def truncate(self, participant: Server | Site, updates: Tensors) -> Tensors:
        """Truncate each matrix of an update to the smallest rank that keeps this round's fraction T of its energy."""
        energy = self.energy_start + (self.energy_end - self.energy_start) * min(participant.round / self.over, 1)
        if energy >= 1:
            return updates
        return {name: truncate_rank(update, energy, self.max_rank) for name, update in updates.items()}

    # ---- the server

    def weight(self, meta: Meta) -> float:
        """Return the weight of a site in the server's mean: 1, so all sites have the same weight."""
        return 1.0

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Return the server's new model: the old one plus the mean update, truncated if `compress` is ``both``."""
        return super().server_update(server, old, self.truncate(server, mean) if self.compress == "both" else mean)

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Train the mentee together with the mentor, and return the mentee's truncated update."""
        site.state.meta["mentor"] = site.network
        reply = super().train(with_host_settings(site, site.task.network), request)
        reply.tensors = self.truncate(site, reply.tensors)
        reply.trained = {"global": reply.trained["personal"], "personal": self.mentor(site)}
        return reply

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: load the mentor, and the linear layer between the features of mentee and mentor."""
        site, network = fit.site, fit.site.state.meta["mentor"]
        fit.extra["mentor"] = CompanionModel(site, self.mentor(site).tensors, network, frozen=False)
        if not self.hidden_loss:
            return
        sizes = feature_count(fit.model, site.network), feature_count(fit.extra["mentor"].model, network)
        with seeded_generators(site.settings.seed, "initial", "adapter", network):
            adapter = nn.Linear(*sizes, bias=False)
        adapter.load_state_dict(auxiliary_state(site, ADAPTER_PREFIX) or adapter.state_dict())
        fit.extra["adapter"] = adapter.to(site.task.device)
        fit.extra["adapter_optimizer"] = site.task.make_optimizer(adapter, adapter.parameters())

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """Return the mentee's optimiser, with the learning rate multiplied by `mentee_rate`."""
        optimizer = super().make_optimizer(fit)
        for group in optimizer.param_groups:
            group["lr"] *= self.mentee_rate
        return optimizer

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return a scalar that has the value of the mentee's loss and the gradient of the sum of both losses.

        The losses are the mentee's and the mentor's for the batch.
        """
        task, mentor = fit.site.task, fit.extra["mentor"]
        if mentor.skips(batch):
            return fit.task_loss(batch)
        if self.hidden_loss:
            own, outputs = features_and_logits(fit.model, batch.images)
            other, answers = mentor.features_and_logits(batch.images)
        else:
            outputs, answers = fit.logits(batch), mentor(batch.images)
        losses = [task.loss(outputs, batch.targets), task.loss(answers, batch.targets)]
        total = torch.stack(losses).sum().detach().clamp(min=MIN_TOTAL_LOSS)
        logits = [task.objective.alternatives(each.float()) for each in (outputs, answers)]
        losses[0] = losses[0] + distillation(logits[0], logits[1]).mean() / total
        losses[1] = losses[1] + distillation(logits[1], logits[0]).mean() / total
        if self.hidden_loss:
            seen = fit.extra["adapter"](own)
            losses[0] = losses[0] + F.mse_loss(seen, other.detach()) / total
            losses[1] = losses[1] + F.mse_loss(other, seen.detach()) / total
        return losses[0] + losses[1] - losses[1].detach()

    def training_parts(self, fit: Fit) -> Mapping[str, TrainingPart]:
        """Return the mentor, and the linear layer between the features of mentee and mentor if there is one."""
        parts: dict[str, TrainingPart] = {"mentor": fit.extra["mentor"]}
        if self.hidden_loss:
            parts["adapter"] = ModelPart(fit.extra["adapter"], fit.extra["adapter_optimizer"])
        return parts

    def after_batch(self, fit: Fit) -> None:
        """Take an optimiser step for the mentor and for the linear layer."""
        fit.extra["mentor"].step(self.gradient_clip)
        if optimizer := fit.extra.get("adapter_optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def after_fit(self, fit: Fit) -> None:
        """Finish a training: store the mentor and the linear layer at the site."""
        set_auxiliary_state(fit.site, MENTOR_PREFIX, cpu_state(fit.extra["mentor"].model))
        if self.hidden_loss:
            set_auxiliary_state(fit.site, ADAPTER_PREFIX, cpu_state(fit.extra["adapter"]))

    def mentor(self, site: Site) -> Model:
        """Return the mentor, the model that never leaves the site; at first it is initialised from the seed."""
        network = site.state.meta.get("mentor", site.network)
        return Model(network, auxiliary_state(site, MENTOR_PREFIX) or site.task.initial(site.settings.seed, network))

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant that are evaluated and exported, by kind.

        ``global``: the mentee, if all parts of it are shared. ``personal``: the mentor of a site.
        """
        if isinstance(participant, Server):
            return super().models(participant)
        shared = super().models(with_host_settings(participant, participant.task.network))
        return {kind: model for kind, model in shared.items() if kind == "global"} | {
            "personal": self.mentor(participant)
        }
