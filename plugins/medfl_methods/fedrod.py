"""FedRoD."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from pydantic import Field

from medfl.contract import Capability, Model, Need, Reply, Request, Server, Site
from medfl.data.pooled import labels_of
from medfl.errors import SettingsError
from medfl.networks.parts import body_and_head, features_and_logits, head_path, single_linear
from medfl.toolkit.fit import Fit
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import on_cpu
from medfl.training.loop import Batch
from medfl.types import Tensors
from medfl_methods.fedavg import FedAvg

OWN = "own/"
"""Where a site keeps its second head."""


class FedRoD(FedAvg):
    """A common model that is trained as if classes were equally frequent, and at each site a second head on its body.

    Body and head are trained and averaged as in FedAvg, by a loss whose logits z are raised to z + gamma ln m_k, where
    m_k are the site's training images of each class (balanced softmax). A class that the site lacks leaves the softmax:
    no gradient pushes it down. The second head is trained beside it, by the plain loss of z + z_own; from this loss no
    gradient flows into z or the body, and it has an optimiser of its own. It begins at zero (ours), so that the
    personal model begins as the common one, and never leaves its site.

    The personal model puts out z + z_own. Heads are one linear layer, so it is a network like the common one, whose
    head is the sum of both. With ``gamma = 0`` the common model is that of `fedavg`, bit by bit.

    When to use it: When sites hold unlike shares of the classes, and both a common model that is fair to all classes
    and one for each site's own patients are wanted. It costs hardly more than FedAvg. At a site of one class the
    common model learns nothing.

    Attributes:
        gamma: How strongly the loss reckons with the site's shares of classes, >= 0; 1 is the balanced softmax.

    Source: Chen, Chao, ICLR 2022, equations 6 to 8 and Algorithm 1, with the balanced softmax and a linear second head.
    """

    name = "fedrod"
    family = "personal"
    paper = "Chen, Chao, ICLR 2022"
    summary = "a common model trained as if classes were equally frequent, and a second head at each site"
    supports = frozenset({Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_logits", "linear_head"})

    gamma: float = Field(1.0, ge=0, allow_inf_nan=False)

    def setup(self, server: Server) -> None:
        """The common initial model.

        Raises:
            SettingsError: If a network's head is not one linear layer, or the loss can't leave a class out.
        """
        super().setup(server)
        task = server.task
        single_linear(task.build(), task.network, "FedRoD adds two heads up")
        logits = torch.zeros(1, task.objective.classes)
        logits[0, 1:] = -torch.inf
        zero = torch.zeros(1, dtype=torch.int64)
        if self.gamma and not torch.isfinite(task.loss(logits.to(task.device), zero.to(task.device))):
            raise SettingsError(
                "loss_not_supported",
                "FedRoD leaves classes that a site lacks out of the loss: expected one that then stays finite, such as "
                "the cross entropy, got infinity. Take away label smoothing, or set gamma to 0.",
                method="fedrod",
                setting="gamma",
            )

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """The second head with its optimiser, and gamma ln m_k."""
        task = fit.site.task
        own = copy.deepcopy(body_and_head(fit.model)[1])
        own.load_state_dict(kept(fit.site, OWN) or {name: torch.zeros_like(t) for name, t in own.state_dict().items()})
        counts = torch.bincount(labels_of(fit.site.train), minlength=task.objective.classes)
        fit.extra |= {"own": own, "prior": self.gamma * counts.to(task.device, torch.float32).log()}
        fit.extra["optimizer"] = task.optimizer(own.parameters())

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The balanced loss of the common model plus the plain loss of both heads together."""
        task, own = fit.site.task, fit.extra["own"]
        features, logits = features_and_logits(fit.model, batch.images)
        common = task.loss(logits + fit.extra["prior"] if self.gamma else logits, batch.targets)
        both: torch.Tensor = task.loss(logits.detach() + own(features.detach()), batch.targets)
        return common + both

    def after_batch(self, fit: Fit) -> None:
        """A step of the second head."""
        fit.extra["optimizer"].step()
        fit.extra["optimizer"].zero_grad()

    def after_fit(self, fit: Fit) -> None:
        """The site keeps its second head."""
        keep(fit.site, OWN, on_cpu(fit.extra["own"].state_dict()))

    def train(self, site: Site, request: Request) -> Reply:
        """As in FedAvg; trained are the common model and the personal one."""
        reply = super().train(site, request)
        common = reply.trained["personal"]
        reply.trained = {"global": common, "personal": self.with_own_head(site, common.tensors)}
        return reply

    def models(self, participant: Server | Site) -> dict[str, Model]:
        """The common model, and at each site its own."""
        models = super().models(participant)
        if isinstance(participant, Site):
            models["personal"] = self.with_own_head(participant, next(iter(models.values())).tensors)
        return models

    def with_own_head(self, site: Site, common: Tensors) -> Model:
        """The model whose head is the sum of the common one and the site's own, if it has one."""
        own = kept(site, OWN)
        path = head_path(site.task.build(site.network), site.network) if own else ""
        return Model(site.network, common | {path + name: common[path + name] + own[name] for name in own})
