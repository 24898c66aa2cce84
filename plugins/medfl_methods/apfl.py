"""APFL: adaptive personalised federated learning with a learned mixture of a personal and the global model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Model, Reply, Request, Server, Site
from medfl.toolkit.co_training import CompanionModel
from medfl.toolkit.fit import Fit
from medfl.toolkit.local_training import cpu_state
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.training.checkpoints import TrainingPart
from medfl.training.loop import Batch
from medfl.types import Meta, Tensors
from medfl_methods.fedavg import FedAvg

PERSONAL_PREFIX = "own/"
"""Prefix, in a site's state, of its personal parameters v."""

MIXTURE_PREFIX = "mixed/"
"""Prefix, in a site's state, of its mixed model as it was after the last local training."""


class APFL(FedAvg):
    """Adaptive personalised federated learning (APFL): each site mixes a personal model with the global model.

    The global model w is trained and averaged as in `fedavg`, and is bitwise equal to the global model of `fedavg` for
    all settings. Beside it, each site trains personal parameters v and a mixing coefficient alpha. A site's personal
    model is the mixture of v and its locally trained w. The mixture has the buffers of v. A site that has not trained
    yet is evaluated with the global model.

    Update rule:
        For each batch, a site takes one step on w and one on v from the same state, with m = alpha v + (1 - alpha) w:

            w <- w - lr grad F(w)
            v <- v - lr alpha grad F(m)

        In the first batch of each round, alpha is updated and clipped to [0, 1]:

            alpha <- alpha - lr <v - w, grad F(m)>

        v starts as the initial model. v and alpha stay at the site and persist over the rounds. Both optimisers start
        with an empty state in each round.

    When to use it: When each hospital needs a model for its own patients and it is unknown how much the other sites can
    contribute. The log contains the learned alpha. Local training costs twice as much as with `fedavg`; the traffic is
    the same.

    Limits: Some published code adds a regularisation term to the gradient of alpha, or updates v with the gradient of
    its own loss. The paper contains neither, and this implementation does neither.

    Limit cases: With ``adaptive = false`` and ``alpha = 1``, the personal models equal the models of `local` if all
    sites take part in every round. With ``adaptive = false`` and ``alpha = 0``, the personal models are the locally
    trained global models.

    Attributes:
        alpha: Initial share of the personal parameters in the mixture, in [0, 1]. Values to try: 0.25, 0.5, 0.75.
        adaptive: Whether alpha is learned.

    Source: Deng, Kamani, Mahdavi, arXiv 2003.13461, 2020, Algorithm 1 and equation 10.
    """

    name = "apfl"
    family = "personal"
    paper = "Deng, Kamani, Mahdavi, 2020"
    summary = "FedAvg plus a personal model at each site that is mixed with the global model by a learned weight"
    supports = frozenset({Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {}, "medfl": {}}

    alpha: float = Field(0.5, ge=0, le=1)
    adaptive: bool = True

    # ---- a site

    def train(self, site: Site, request: Request) -> Reply:
        """Train as `fedavg` does; reply with the trained global model and the mixture as trained models."""
        reply = super().train(site, request)
        mixed = Model(site.network, auxiliary_state(site, MIXTURE_PREFIX))
        reply.trained = {"global": reply.trained["personal"], "personal": mixed}
        return reply

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: load the personal model with an optimiser of its own, and the site's alpha."""
        site = fit.site
        own = auxiliary_state(site, PERSONAL_PREFIX) or site.task.initial(site.settings.seed, site.network)
        fit.extra["own"] = CompanionModel(site, own, site.network, frozen=False)
        fit.log["alpha"] = float(site.state.meta.get("alpha", self.alpha))

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss of the global model; as a side effect, step the personal model and update alpha."""
        loss = fit.task_loss(batch)
        alpha, own = fit.log["alpha"], fit.extra["own"]
        common = {name: p.detach() for name, p in fit.parameters()}
        v = {name: p for name, p in own.model.named_parameters() if name in common}
        mixed = {name: torch.empty_like(p) for name, p in v.items()}  # memory layout of v, for bitwise reproducibility
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

    def training_parts(self, fit: Fit) -> Mapping[str, TrainingPart]:
        """Return the personal model."""
        return {"personal": fit.extra["own"]}

    def after_fit(self, fit: Fit) -> None:
        """Store the personal parameters, the mixture and alpha in the site's state."""
        own, common, alpha = cpu_state(fit.extra["own"].model), cpu_state(fit.model), fit.log["alpha"]
        set_auxiliary_state(fit.site, PERSONAL_PREFIX, own)
        set_auxiliary_state(
            fit.site, MIXTURE_PREFIX, own | mixture(own, common, [name for name, _ in fit.parameters()], alpha)
        )
        fit.site.state.meta["alpha"] = alpha

    # ---- models

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant by kind: ``global``, and at a site the mixture as ``personal``."""
        models = super().models(participant)
        if isinstance(participant, Site):
            common = next(iter(models.values())).tensors
            models["personal"] = Model(participant.network, auxiliary_state(participant, MIXTURE_PREFIX) or common)
        return models


def mixture(own: Tensors, common: Tensors, names: list[str], alpha: float) -> Tensors:
    """Return alpha v + (1 - alpha) w for the named tensors; exactly v for alpha = 1 and exactly w for alpha = 0.

    Args:
        own: Personal parameters v.
        common: Global parameters w, of the same shapes.
        names: Names of the tensors to mix.
        alpha: Share of v, in [0, 1].
    """
    return {name: torch.lerp(common[name], own[name], alpha) for name in names}
