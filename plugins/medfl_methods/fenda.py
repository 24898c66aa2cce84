"""FENDA-FL: a personal and a global body at each site, under a personal head."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from medfl.contract import Capability, Model, Need
from medfl.networks.parts import body_and_head, feature_count
from medfl.task import Task
from medfl.toolkit.body_sharing import BodySharing
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch

FeatureJoin = Literal["concat", "sum"]
"""Combination of the features of both bodies: concatenation or sum."""
GLOBAL_BODY_PREFIX = "body."
"""Prefix of the tensors of the global body in the network's state dict."""


class TwoBodies(nn.Module):
    """Network with two bodies of the same architecture and one head on their joined features.

    Args:
        own: Personal body, which maps images to features (B, d).
        body: Global body, of the same architecture.
        head: Head, which maps joined features to outputs.
        join: ``concat`` gives the head (B, 2 d) features, the personal ones first; ``sum`` gives it the sum (B, d).

    Attributes:
        own: Personal body.
        body: Global body.
        head: Head.
        join: Combination of the features of both bodies.
    """

    def __init__(self, own: nn.Module, body: nn.Module, head: nn.Module, join: FeatureJoin) -> None:
        super().__init__()
        self.own, self.body, self.head, self.join = own, body, head, join

    def features(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the features (B, d) by the personal body and by the global body."""
        return self.own(images), self.body(images)

    def join_and_classify(self, own: torch.Tensor, common: torch.Tensor) -> torch.Tensor:
        """Return the outputs (B, outputs) for the features of both bodies."""
        both = torch.cat([own.flatten(1), common.flatten(1)], 1) if self.join == "concat" else own + common
        return cast("torch.Tensor", self.head(both))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the outputs (B, outputs) for images (B, C, *spatial)."""
        return self.join_and_classify(*self.features(images))


class Fenda(BodySharing):
    """FENDA-FL: each site has a personal and a global body under a personal head; only the global body is averaged.

    The head receives the features of both bodies, either concatenated or summed. All three parts are trained together.
    The initial tensors are the same at all sites, but differ between the two bodies, because two equal bodies under a
    sum would stay equal. Pre-trained weights are loaded into both bodies. There is no global model.

    Update rule:
        With features o of the personal body and c of the global body, a site minimises

            F(head(join(o, c))) + cosine * mean over the batch of |cos(o, c)|

        The server averages the global bodies as in `fedavg`.

    When to use it: When the sites' images have both common and site-specific characteristics, such as the look of a
    scanner, and each site needs a model for its own patients.

    Limits: Local training costs twice as much as with `fedavg`. The traffic is as large as with `fedper`.

    Attributes:
        join: ``concat`` replaces the network's head by a linear head on 2 d features; ``sum`` keeps the network's head.
        cosine: Weight of the mean |cos| between an image's personal and global features, >= 0. It makes the features of
            the two bodies dissimilar.

    Source: Tavakoli, Emerson, Ayromlou, Jewell, Krishnan, Zhang, Verma, Razak, arXiv 2309.16825, section 3.
    """

    name = "fenda"
    family = "personal"
    paper = "Tavakoli et al., 2023"
    summary = "a personal and a global body at each site under a personal head; the global bodies are averaged"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.DP_SGD, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"linear_head", "trainable_body"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""

    join: FeatureJoin = "concat"
    cosine: float = Field(0.0, ge=0, allow_inf_nan=False)

    # ---- networks

    def task_of(self, task: Task) -> Task:
        """Return the task with the method's networks, which have two bodies. Pre-trained weights initialise both."""
        outputs = task.objective.outputs
        for name in task.networks:
            task = task.with_network(
                name, partial(build_with_two_bodies, partial(task.build, name), name, self.join, outputs)
            )
        return task

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the MONAI configuration of the network in an exported bundle, with two bodies."""
        outputs = len(model.tensors["head.bias"]) if self.join == "concat" else 0
        config = {
            "_target_": f"{__name__}.with_two_bodies",
            "network": network_def,
            "join": self.join,
            "outputs": outputs,
        }
        return config | {"name": model.network}

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the tensors that sites and server exchange: of the global body."""
        return [name for name in super().shared_names(model, norm_sync) if name.startswith(GLOBAL_BODY_PREFIX)]

    # ---- a site

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss plus `regulariser`."""
        model = cast("TwoBodies", fit.model)
        own, common = model.features(batch.images)
        loss = fit.site.task.loss(model.join_and_classify(own, common), batch.targets)
        return cast(
            "torch.Tensor", loss + self.regulariser(fit, batch, own.float().flatten(1), common.float().flatten(1))
        )

    def regulariser(self, fit: Fit, batch: Batch, own: torch.Tensor, common: torch.Tensor) -> torch.Tensor | float:
        """Compute the regulariser: `cosine` times the mean |cos| of personal and global features.

        Args:
            fit: Training at the site.
            batch: The batch.
            own: Features (B, d) by the personal body.
            common: Features (B, d) by the global body.
        """
        return self.cosine * F.cosine_similarity(own, common, dim=1).abs().mean() if self.cosine else 0.0


def with_two_bodies(
    network: nn.Module, join: FeatureJoin, outputs: int, name: str = "", other: nn.Module | None = None
) -> TwoBodies:
    """Return a network with two bodies in place of its body.

    Args:
        network: Network that computes head(body(images)).
        join: Combination of the features: ``concat``, with a new linear head, or ``sum``.
        outputs: Number of outputs of the new head.
        name: Name of the network, for error messages.
        other: Network of the same architecture whose body becomes the personal one; None copies the body.
    """
    body, head = body_and_head(network)
    own = copy.deepcopy(body) if other is None else body_and_head(other)[0]
    wide = nn.Linear(2 * feature_count(network, name), outputs) if join == "concat" else head
    return TwoBodies(own, body, wide, join)


def build_with_two_bodies(build: Callable[[], nn.Module], name: str, join: FeatureJoin, outputs: int) -> TwoBodies:
    """Build a network with two bodies.

    Args:
        build: Function that builds the network.
        name: Name of the network, for error messages.
        join: Combination of the features: ``concat``, with a new linear head, or ``sum``.
        outputs: Number of outputs of the new head with ``concat``.
    """
    network, other = build(), build()  # two different random bodies, or the same ones if the run has a start
    return with_two_bodies(network, join, outputs, name, other)
