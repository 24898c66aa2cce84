"""FENDA-FL."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from medfl.contract import Capability, Model, Need
from medfl.networks.parts import body_and_head, features_of
from medfl.networks.pretrained import Pretrained
from medfl.task import Task
from medfl.toolkit.body_sharing import BodySharing
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch

Join = Literal["concat", "sum"]
OWN, BODY = "own.", "body."
"""What the names of a network's tensors begin with: of the site's own body, and of the common one."""


class TwoBodies(nn.Module):
    """Two bodies of one kind, and a head on what both make of an image.

    Args:
        own: The own body, which maps images to features (B, d).
        body: The common one, of the same kind.
        head: Maps joined features to outputs.
        join: ``concat`` gives the head (B, 2 d), first the own features; ``sum`` gives it their sum.
    """

    def __init__(self, own: nn.Module, body: nn.Module, head: nn.Module, join: Join) -> None:
        super().__init__()
        self.own, self.body, self.head, self.join = own, body, head, join

    def parts(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (B, d) by the own body and by the common one."""
        return self.own(images), self.body(images)

    def joined(self, own: torch.Tensor, common: torch.Tensor) -> torch.Tensor:
        """Outputs (B, outputs) of both features."""
        both = torch.cat([own.flatten(1), common.flatten(1)], 1) if self.join == "concat" else own + common
        return cast("torch.Tensor", self.head(both))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Outputs (B, outputs) of images (B, C, *spatial)."""
        return self.joined(*self.parts(images))


class Fenda(BodySharing):
    """Each site has two bodies, an own one and a common one, and a head on both: only the common body is averaged.

    All three are trained together, by the task's loss. The head takes the features of both bodies side by side, or
    their sum. All begin alike at all sites, but the own body unlike the common one: two alike bodies under a sum would
    stay alike. Weights of a file go into both. There is no global model.

    When to use it: When sites' images have something in common and something of their own, such as a scanner's look,
    and each wants a model for its own patients. It costs twice FedAvg's computation, and sends no more than `fedper`.

    Attributes:
        join: ``concat`` puts a linear head on 2 d features in place of the network's own; ``sum`` keeps that.
        cosine: Weight of the mean of |cos| between an image's own and common features, >= 0, which draws the two bodies
            to unlike features.

    Source: Tavakoli, Emerson, Ayromlou, Jewell, Krishnan, Zhang, Verma, Razak, arXiv 2309.16825, section 3.
    """

    name = "fenda"
    family = "personal"
    paper = "Tavakoli et al., 2023"
    summary = "two bodies at each site, an own and a common one, under a head of its own"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.DP_SGD, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"linear_head"})

    join: Join = "concat"
    cosine: float = Field(0.0, ge=0, allow_inf_nan=False)

    # ---- networks

    def task_of(self, task: Task) -> Task:
        """The run's networks with two bodies, of which both begin with the run's weights, if it has any."""
        outputs, weights = task.objective.outputs, task.weights
        for name in task.networks:
            file = weights if name == task.network else None
            task = task.with_network(name, partial(built, partial(task.build, name), name, self.join, outputs, file))
        return replace(task, weights=None)

    def network_config(self, model: Model, network_def: Any) -> Any:
        """The network with two bodies."""
        outputs = len(model.tensors["head.bias"]) if self.join == "concat" else 0
        config = {"_target_": f"{__name__}.two_bodies", "network": network_def, "join": self.join, "outputs": outputs}
        return config | {"name": model.network}

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """The common body's tensors."""
        return [name for name in super().shared(model, norm_sync) if name.startswith(BODY)]

    # ---- a site

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss plus `term`."""
        model = cast("TwoBodies", fit.model)
        own, common = model.parts(batch.images)
        loss = fit.site.task.loss(model.joined(own, common), batch.targets)
        return cast("torch.Tensor", loss + self.term(fit, batch, own.float().flatten(1), common.float().flatten(1)))

    def term(self, fit: Fit, batch: Batch, own: torch.Tensor, common: torch.Tensor) -> torch.Tensor | float:
        """What is added to the loss, of the features (B, d) by both bodies."""
        return self.cosine * F.cosine_similarity(own, common, dim=1).abs().mean() if self.cosine else 0.0


def two_bodies(
    network: nn.Module, join: Join, outputs: int, name: str = "", other: nn.Module | None = None
) -> TwoBodies:
    """A network with two bodies in place of one.

    Args:
        network: Is head(body(images)).
        join: As in `TwoBodies`; ``concat`` gives it a new linear head.
        outputs: Of that.
        name: Of the network, for messages.
        other: A network of the same kind, which gives the own body; None copies.
    """
    body, head = body_and_head(network)
    own = copy.deepcopy(body) if other is None else body_and_head(other)[0]
    wide = nn.Linear(2 * features_of(network, name), outputs) if join == "concat" else head
    return TwoBodies(own, body, wide, join)


def built(build: Callable[[], nn.Module], name: str, join: Join, outputs: int, weights: Pretrained | None) -> TwoBodies:
    """A new network with two bodies, with weights of a file in both."""
    network, other = build(), build()
    if weights is not None:
        begun = weights.body_of(network, name)
        for each in (network, other):
            each.load_state_dict(each.state_dict() | begun)
    return two_bodies(network, join, outputs, name, other)
