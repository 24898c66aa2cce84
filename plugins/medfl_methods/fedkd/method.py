"""FedKD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional as F

from medfl.contract import Capability, Filter, Model, Need, Reply, Request, Server, Site
from medfl.networks.parts import features_and_logits, features_of
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.co_training import CompanionModel
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.losses import distillation
from medfl.toolkit.transfer import as_host
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors
from medfl.utils.rng import pinned
from medfl_methods.fedkd.low_rank import LowRankFactors, cut

MENTOR, ADAPTER = "mentor/", "adapter/"
"""Where a site keeps its own model, and the linear layer from the mentee's features to its own."""

SMALLEST = 1e-8
"""The sum of both losses counts as at least this much."""


class FedKD(Averaging):
    """Each site has a mentor of its own, which never leaves; it and a shared mentee teach each other.

    The mentee is the run's network, the mentor that of the site (`networks_by_site`). Each batch trains both: the
    mentee minimises its loss plus [KL(mentor || mentee) + MSE(mentor's features, W mentee's features)] / S, the mentor
    the same with the roles exchanged; S is the sum of both losses. S and whoever teaches have no gradient, so each loss
    trains its own model; the layer W is the site's and learns with the mentee. Batches that are too small for the
    mentor's batch norm train the mentee alone.

    The mentee's update is cut, matrix by matrix, to the smallest rank that holds a share T of its energy (the sum of
    squared singular values), and sent as factors; T rises from `energy_start` to `energy_end` in `over` rounds. Where
    factors would be longer than the matrix it is sent as it is. The server's mean, all sites weighing alike, is cut in
    the same way before it is added, as the paper's down-link is. Orders hold the whole mentee all the same (ours): a
    site that was away needs all of it. With both energies 1 nothing is cut, and the mentee is the mean of the sites'.
    As ranks hang on the data, runs with a privacy setting have to do without factors: set both energies to 1.

    When to use it: Where sites want a large network of their own, or unlike ones, and can send little. It costs the
    training of both networks.

    Attributes:
        hidden_loss: Whether features are compared, too; it needs a linear layer in each head.
        energy_start: T in the beginning, in (0, 1].
        energy_end: T after `over` rounds, in (0, 1].
        over: Rounds in which T rises, >= 1; in the paper those of the run, which may be prolonged here.
        compress: ``both`` ways, or ``up`` only.
        max_rank: Of a matrix that is cut, >= 1; None sets no limit.
        mentee_rate: The mentee's learning rate as a multiple of the task's, > 0.

    Source: Wu, Wu, Lyu, Huang, Xie, Nature Communications 2022, equations 1 to 8. Kernels are matrices of their output
    channels, and the rank is chosen by the squares, which the released codes do otherwise.
    """

    name = "fedkd"
    family = "personal"
    paper = "Wu et al., Nature Communications 2022"
    summary = "a mentor at each site and a shared mentee teach each other; updates go as factors of low rank"
    supports = frozenset({Capability.DIFFERENT_NETWORKS, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"linear_head", "soft_targets"})
    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}

    hidden_loss: bool = True
    energy_start: float = Field(0.95, gt=0, le=1)
    energy_end: float = Field(0.98, gt=0, le=1)
    over: int = Field(100, ge=1)
    compress: Literal["both", "up"] = "both"
    max_rank: int | None = Field(None, ge=1)
    mentee_rate: float = Field(1.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _rank_and_energy(self) -> FedKD:
        if self.max_rank is not None and not self.cuts:
            raise ValueError("expected energies below 1 beside max_rank: with both at 1 nothing is cut")
        return self

    @property
    def active_needs(self) -> frozenset[Need]:
        """Linear heads to compare features."""
        return self.needs if self.hidden_loss else frozenset({"soft_targets"})

    @property
    def cuts(self) -> bool:
        """Whether updates are cut in any round."""
        return min(self.energy_start, self.energy_end) < 1

    def filters(self) -> tuple[Filter, ...]:
        """What is of low rank goes as factors."""
        return (LowRankFactors(),) if self.cuts else ()

    def cut(self, participant: Server | Site, updates: Tensors) -> Tensors:
        """Updates cut to this round's share of their energy."""
        energy = self.energy_start + (self.energy_end - self.energy_start) * min(participant.round / self.over, 1)
        if energy >= 1:
            return updates
        return {name: cut(update, energy, self.max_rank) for name, update in updates.items()}

    # ---- the server

    def weight(self, meta: Meta) -> float:
        """All sites weigh alike."""
        return 1.0

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """The mean update as the down-link would bring it."""
        return super().server_update(server, old, self.cut(server, mean) if self.compress == "both" else mean)

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Train the mentee, with the mentor beside it."""
        site.state.meta["mentor"] = site.network
        reply = super().train(as_host(site, site.task.network), request)
        reply.tensors = self.cut(site, reply.tensors)
        reply.trained = {"global": reply.trained["personal"], "personal": self.mentor(site)}
        return reply

    def before_fit(self, fit: Fit) -> None:
        """The mentor, and the layer between the features."""
        site, network = fit.site, fit.site.state.meta["mentor"]
        fit.extra["mentor"] = CompanionModel(site, self.mentor(site).tensors, network, frozen=False)
        if not self.hidden_loss:
            return
        sizes = features_of(fit.model, site.network), features_of(fit.extra["mentor"].model, network)
        with pinned(site.settings.seed, "initial", "adapter", network):
            adapter = nn.Linear(*sizes, bias=False)
        adapter.load_state_dict(kept(site, ADAPTER) or adapter.state_dict())
        fit.extra["adapter"] = adapter.to(site.task.device)
        fit.extra["adapter_optimizer"] = site.task.optimizer(adapter.parameters())

    def make_optimizer(self, fit: Fit) -> torch.optim.Optimizer:
        """The mentee's."""
        optimizer = super().make_optimizer(fit)
        for group in optimizer.param_groups:
            group["lr"] *= self.mentee_rate
        return optimizer

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The mentee's loss; its gradient is that of the mentor's, too."""
        task, mentor = fit.site.task, fit.extra["mentor"]
        if mentor.sits_out(batch):
            return super().loss(fit, batch)
        if self.hidden_loss:
            own, outputs = features_and_logits(fit.model, batch.images)
            other, answers = mentor.features_and_logits(batch.images)
        else:
            outputs, answers = fit.logits(batch), mentor(batch.images)
        losses = [task.loss(outputs, batch.targets), task.loss(answers, batch.targets)]
        total = torch.stack(losses).sum().detach().clamp(min=SMALLEST)
        logits = [task.objective.alternatives(each.float()) for each in (outputs, answers)]
        losses[0] = losses[0] + distillation(logits[0], logits[1]).mean() / total
        losses[1] = losses[1] + distillation(logits[1], logits[0]).mean() / total
        if self.hidden_loss:
            seen = fit.extra["adapter"](own)
            losses[0] = losses[0] + F.mse_loss(seen, other.detach()) / total
            losses[1] = losses[1] + F.mse_loss(other, seen.detach()) / total
        return losses[0] + losses[1] - losses[1].detach()

    def after_batch(self, fit: Fit) -> None:
        """The mentor's step, and that of the layer between."""
        fit.extra["mentor"].step(self.gradient_clip)
        if optimizer := fit.extra.get("adapter_optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def after_fit(self, fit: Fit) -> None:
        """The mentor stays at the site."""
        keep(fit.site, MENTOR, cpu_state(fit.extra["mentor"].model))
        if self.hidden_loss:
            keep(fit.site, ADAPTER, cpu_state(fit.extra["adapter"]))

    def mentor(self, site: Site) -> Model:
        """The site's own model, which begins as its network does."""
        network = site.state.meta.get("mentor", site.network)
        return Model(network, kept(site, MENTOR) or site.task.initial(site.settings.seed, network))

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The mentee where all of it is shared; the mentor at a site."""
        if isinstance(participant, Server):
            return super().models(participant)
        shared = super().models(as_host(participant, participant.task.network))
        return {kind: model for kind, model in shared.items() if kind == "global"} | {
            "personal": self.mentor(participant)
        }
