"""FedRoD: a class-balanced global model, and a personal second head at each site."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Model, Need, Reply, Request, Server, Site
from medfl.data.pooled import labels_of
from medfl.errors import SettingsError
from medfl.networks.parts import body_and_head, features_and_logits, head_prefix, single_linear
from medfl.toolkit.fit import Fit
from medfl.toolkit.local_training import on_cpu
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.training.checkpoints import ModelPart, TrainingPart
from medfl.training.loop import Batch
from medfl.types import Tensors
from medfl_methods.fedavg import FedAvg

SECOND_HEAD_PREFIX = "own/"
"""Prefix, in a site's state, of its second head."""


class FedRoD(FedAvg):
    """Robust decoupling (FedRoD): a class-balanced global model, plus a personal second head at each site.

    The global model is trained with a balanced loss and averaged as in `fedavg`. Beside it, each site trains a second
    head on the features of the body with the plain loss. The second head never leaves the site, and has an optimiser of
    its own. The personal model is the global body with the sum of both heads. Both heads are one linear layer, so the
    personal model has the same network as the global one.

    Update rule:
        With logits z of the global model, logits z_own of the second head, and m_kc the number of training images of
        class c at site k:

            global model:  minimise F(z + gamma ln m_k)       (balanced softmax)
            second head:   minimise F(z + z_own), without gradients into z and the body

        A class that the site lacks is removed from the softmax, so no gradient lowers its logit. The second head starts
        at 0 (an addition of medfl), so the personal model starts as the global model.

    When to use it: When sites have different class distributions, and both a global model that is fair to all classes
    and a personal model for each site are needed. Computation is hardly more than with `fedavg`.

    Limits: At a site with a single class, the global model learns nothing.

    Limit cases: With ``gamma = 0``, the global model is bitwise equal to the global model of `fedavg`.

    Attributes:
        gamma: Strength of the class balancing, >= 0; 1 is the balanced softmax.

    Source: Chen, Chao, ICLR 2022, equations 6 to 8 and Algorithm 1, with the balanced softmax and a linear second head.
    """

    name = "fedrod"
    family = "personal"
    paper = "Chen, Chao, ICLR 2022"
    summary = "class-balanced global model, plus a personal second head at each site"
    supports = frozenset({Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits", "linear_head"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""

    gamma: float = Field(1.0, ge=0, allow_inf_nan=False)

    def setup(self, server: Server) -> None:
        """Set the server's state to the initial model.

        Raises:
            SettingsError: If a network's head is not one linear layer, or the loss becomes infinite without a class.
        """
        super().setup(server)
        task = server.task
        single_linear(task.build(), task.network, "FedRoD adds two heads")
        logits = torch.zeros(1, task.objective.classes)
        logits[0, 1:] = -torch.inf
        zero = torch.zeros(1, dtype=torch.int64)
        if self.gamma and not torch.isfinite(task.loss(logits.to(task.device), zero.to(task.device))):
            raise SettingsError(
                "loss_not_supported",
                "FedRoD removes the classes that a site lacks from the loss: expected a loss that stays finite, such "
                "as the cross entropy, got infinity. Remove label smoothing, or set gamma to 0.",
                method="fedrod",
                setting="gamma",
            )

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """Prepare a training: load the second head with its optimiser, and compute gamma ln m_k."""
        task = fit.site.task
        own = copy.deepcopy(body_and_head(fit.model)[1])
        own.load_state_dict(
            auxiliary_state(fit.site, SECOND_HEAD_PREFIX)
            or {name: torch.zeros_like(t) for name, t in own.state_dict().items()}
        )
        counts = torch.bincount(labels_of(fit.site.train), minlength=task.objective.classes)
        fit.extra |= {"own": own, "prior": self.gamma * counts.to(task.device, torch.float32).log()}
        fit.extra["optimizer"] = task.make_optimizer(own, own.parameters())

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the balanced loss of the global model plus the plain loss of the summed heads."""
        task, own = fit.site.task, fit.extra["own"]
        features, logits = features_and_logits(fit.model, batch.images)
        common = task.loss(logits + fit.extra["prior"] if self.gamma else logits, batch.targets)
        both: torch.Tensor = task.loss(logits.detach() + own(features.detach()), batch.targets)
        return common + both

    def training_parts(self, fit: Fit) -> Mapping[str, TrainingPart]:
        """Return the second head."""
        return {"head": ModelPart(fit.extra["own"], fit.extra["optimizer"])}

    def after_batch(self, fit: Fit) -> None:
        """Take an optimiser step of the second head."""
        fit.extra["optimizer"].step()
        fit.extra["optimizer"].zero_grad()

    def after_fit(self, fit: Fit) -> None:
        """Store the second head in the site's state."""
        set_auxiliary_state(fit.site, SECOND_HEAD_PREFIX, on_cpu(fit.extra["own"].state_dict()))

    def train(self, site: Site, request: Request) -> Reply:
        """Train as in FedAvg; reply with the trained global model and the personal model."""
        reply = super().train(site, request)
        common = reply.trained["personal"]
        reply.trained = {"global": common, "personal": self.with_second_head(site, common.tensors)}
        return reply

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """Return the models of a participant by kind: ``global``, and at a site also ``personal``."""
        models = super().models(participant)
        if isinstance(participant, Site):
            models["personal"] = self.with_second_head(participant, next(iter(models.values())).tensors)
        return models

    def with_second_head(self, site: Site, common: Tensors) -> Model:
        """Return the model whose head is the sum of the global head and the site's second head, if it has one."""
        own = auxiliary_state(site, SECOND_HEAD_PREFIX)
        path = head_prefix(site.task.build(site.network), site.network) if own else ""
        return Model(site.network, common | {path + name: common[path + name] + own[name] for name in own})
