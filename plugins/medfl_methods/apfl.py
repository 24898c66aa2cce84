"""APFL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Model, Reply, Request, Server, Site
from medfl.toolkit.co_training import CompanionModel
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import cpu_state
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors
from medfl_methods.fedavg import FedAvg

OWN, MIXED = "own/", "mixed/"
"""Where a site keeps its own model, and the mixture."""


class APFL(FedAvg):
    """Adaptive personalised federated learning: FedAvg, and beside it at each site a model that is mixed with the
    common one.

    A site's model is the mixture alpha v + (1 - alpha) w of its own parameters v and those of the model w that it
    trains for all. By each batch, from one and the same state, w steps along its own gradient, as in FedAvg, and v
    along alpha times the gradient of the loss by the mixture. v and alpha stay at the site and go on from round to
    round; v begins with the initial model. Both optimisers start anew in each round. In a round's first batch alpha
    takes a step against <v - w, gradient by the mixture>, at the learning rate of the run. Buffers of the mixture are
    those of v. Common code adds to that gradient of alpha, or steps v along the gradient of its own loss; neither is in
    the paper.

    The common model is that of `fedavg`, bit by bit, whatever the settings. Without `adaptive`, ``alpha = 1`` makes the
    own models those of `local`, if all sites take part in every round, and ``alpha = 0`` those that the sites trained
    for all. A site that has not trained yet is scored with the common model.

    When to use it: When each hospital wants a model for its own patients and it is not clear how much the others can
    add: alpha says so, in the log. It costs twice FedAvg's computation, and no more traffic.

    Attributes:
        alpha: Share of the own parameters at first, in [0, 1]. Worth trying: 0.25, 0.5, 0.75.
        adaptive: Whether alpha is learned.

    Source: Deng, Kamani, Mahdavi, arXiv 2003.13461, 2020, Algorithm 1 and equation 10.
    """

    name = "apfl"
    family = "personal"
    paper = "Deng, Kamani, Mahdavi, 2020"
    summary = "FedAvg, and at each site a mixture of the common model and its own, whose share it learns"
    supports = frozenset({Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}

    alpha: float = Field(0.5, ge=0, le=1)
    adaptive: bool = True

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """As `fedavg`; scored are the model for all and the mixture."""
        reply = super().train(site, request)
        mixed = Model(site.network, kept(site, MIXED))
        reply.trained = {"global": reply.trained["personal"], "personal": mixed}
        return reply

    def before_fit(self, fit: Fit) -> None:
        """The own model, with an optimiser of its own."""
        site = fit.site
        own = kept(site, OWN) or site.task.initial(site.settings.seed, site.network)
        fit.extra["own"] = CompanionModel(site, own, site.network, frozen=False)
        fit.log["alpha"] = float(site.state.meta.get("alpha", self.alpha))

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss of the model for all; the own one takes its step, before the other does."""
        loss = super().loss(fit, batch)
        alpha, own = fit.log["alpha"], fit.extra["own"]
        common = {name: p.detach() for name, p in fit.parameters()}
        v = {name: p for name, p in own.model.named_parameters() if name in common}
        mixed = {name: torch.empty_like(p) for name, p in v.items()}  # laid out in memory as v, for the same bits
        for name, tensor in mixed.items():
            tensor.copy_(torch.lerp(common[name], v[name].detach(), alpha)).requires_grad_()
        fit.site.task.loss(own(batch.images, mixed), batch.targets).backward()
        gradients = {name: tensor.grad for name, tensor in mixed.items() if tensor.grad is not None}
        if self.adaptive and fit.steps == 0:
            slope = sum(float(((v[name].detach() - w) * gradients[name]).sum()) for name, w in common.items())
            fit.log["alpha"] = min(max(alpha - fit.optimizer.param_groups[0]["lr"] * slope, 0.0), 1.0)
        for name, p in v.items():
            p.grad = gradients[name] * alpha
        own.step(self.gradient_clip)
        return loss

    def after_fit(self, fit: Fit) -> None:
        """The site keeps its own model, the mixture and alpha."""
        own, common, alpha = cpu_state(fit.extra["own"].model), cpu_state(fit.model), fit.log["alpha"]
        keep(fit.site, OWN, own)
        keep(fit.site, MIXED, own | mixture(own, common, [name for name, _ in fit.parameters()], alpha))
        fit.site.state.meta["alpha"] = alpha

    # ---- models

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The common model, and at each site the mixture as it was after its last training."""
        models = super().models(participant)
        if isinstance(participant, Site):
            common = next(iter(models.values())).tensors
            models["personal"] = Model(participant.network, kept(participant, MIXED) or common)
        return models


def mixture(own: Tensors, common: Tensors, names: list[str], alpha: float) -> Tensors:
    """alpha v + (1 - alpha) w of the named tensors; exactly v at 1 and w at 0."""
    return {name: torch.lerp(common[name], own[name], alpha) for name in names}
