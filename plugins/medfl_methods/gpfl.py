"""GPFL."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from medfl.contract import Capability, Model, Need
from medfl.data.pooled import labels_of
from medfl.networks.parts import body_and_head, features_of, head_path, with_head
from medfl.task import Task
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.body_sharing import BodySharing
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch

Magnitude = Literal["batch", "mean_square"]

OWN, SHARES = "own", "class_shares"
"""The parts of a `ConditionedHead` that stay at a site."""


class ConditionedHead(nn.Module):
    """A conditional valve (CoV), an embedding of each class, and a head on the features that the valve lets through.

    Args:
        features: Of the body that it stands on, d >= 1.
        classes: Number of classes, C >= 1.
        own: Maps features (B, d) to outputs.

    Attributes:
        class_shares: What the embeddings weigh by in the condition of the own head, (C,), >= 0, summing to 1.
    """

    def __init__(self, features: int, classes: int, own: nn.Module) -> None:
        super().__init__()
        self.scale, self.shift = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features)) for _ in range(2)
        )
        self.embeddings = nn.Parameter(torch.randn(classes, features))
        self.class_shares: torch.Tensor
        self.register_buffer(SHARES, torch.full((classes,), 1 / classes))
        self.own = own

    def valve(self, features: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """ReLU((scale(u) + 1) f + shift(u)) of features f (B, d) and a condition u (d,)."""
        return F.relu((self.scale(condition) + 1) * features + self.shift(condition))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Outputs (B, outputs) of features (B, d), under the condition by the site's shares of classes."""
        outputs: torch.Tensor = self.own(self.valve(features.flatten(1), self.class_shares @ self.embeddings))
        return outputs


class GPFL(BodySharing):
    """Global and personal features at once: one body, whose features a common layer bends to what all sites need or to
    what each one does.

    Sites share the body, an embedding of each class and a conditional valve: CoV(f, u) = ReLU((a(u) + 1) f + b(u)) for
    features f and a condition u, where a and b are each a linear layer, ReLU and layer norm. Heads stay at home. Of the
    received embeddings V a site makes two conditions, fixed for the round: g, their mean, and p, their mean weighted by
    its shares of the classes. It minimises its loss by the own head on CoV(f, p), plus the cross entropy of the cosines
    of CoV(f, g) and all V, plus lam times the distance of CoV(f, g) to the received embedding of the image's class,
    plus (mu / 2) ||.||^2 of V and CoV. A personal model is the own head on CoV(f, p), with p of the V that it has. A
    site that has not trained yet takes g for p.

    Released codes make conditions of a site's old embeddings, or divide p by the number of classes once more; neither
    is done here. No setting makes it another method.

    When to use it: When sites hold unlike shares of the classes and each wants a model for its own patients, with a
    body that serves all. It costs little more than `fedper`. What changes in V tells which classes a site has.

    Attributes:
        lam: Weight of the distance to embeddings, >= 0.
        mu: Weight decay of embeddings and valve, >= 0, on top of that of the run's optimiser.
        magnitude: The distance: ``batch`` is the Euclidean one of the whole batch, as in the released codes, which
            grows with the root of its size; ``mean_square`` the mean over images of the squared one.

    Source: Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan, ICCV 2023, and its released code.
    """

    name = "gpfl"
    family = "personal"
    paper = "Zhang et al., ICCV 2023"
    summary = "a common body whose features a shared layer bends to what all need and to what a site does"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "linear_head"})

    lam: float = Field(0.01, ge=0, allow_inf_nan=False)
    mu: float = Field(0.01, ge=0, allow_inf_nan=False)
    magnitude: Magnitude = "batch"

    # ---- networks

    def task_of(self, task: Task) -> Task:
        """The run's networks with a valve and embeddings before their heads."""
        for name in task.networks:
            task = task.with_network(name, partial(built, partial(task.build, name), name, task.objective.classes))
        return task

    def network_config(self, model: Model, network_def: Any) -> Any:
        """The network with a valve and embeddings before its head."""
        classes = next(len(tensor) for name, tensor in model.tensors.items() if name.endswith(f".{SHARES}"))
        config = {"_target_": f"{__name__}.conditioned", "network": network_def, "classes": classes}
        return config | {"name": model.network}

    def shared(self, model: nn.Module, norm_sync: str) -> list[str]:
        """All but the own head and what belongs to it."""
        path = head_path(model, type(model).__name__)
        own = (f"{path}{OWN}.", f"{path}{SHARES}")
        return [name for name in Averaging.shared(self, model, norm_sync) if not name.startswith(own)]

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """The site's shares of classes, the received embeddings, and both conditions."""
        head = cast("ConditionedHead", body_and_head(fit.model)[1])
        counts = torch.bincount(labels_of(fit.site.train), minlength=len(head.class_shares))
        head.class_shares.copy_(counts.double() / counts.sum())
        received = head.embeddings.detach().clone()
        fit.extra |= {"embeddings": received, "common": received.mean(0), "own": head.class_shares @ received}

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """The task's loss by the own head, and the three terms."""
        task, (body, part) = fit.site.task, body_and_head(fit.model)
        head, features = cast("ConditionedHead", part), body(batch.images).flatten(1)
        labels: torch.Tensor = task.objective.class_labels(batch.targets)  # type: ignore[assignment]
        common = head.valve(features, fit.extra["common"])
        loss: torch.Tensor = task.loss(head.own(head.valve(features, fit.extra["own"])), batch.targets)
        loss = loss + angle_loss(common, head.embeddings, labels)
        if self.lam:
            loss = loss + self.lam * magnitude_loss(common, fit.extra["embeddings"][labels], self.magnitude)
        if self.mu:
            parts = [p for name, p in head.named_parameters() if not name.startswith(f"{OWN}.")]
            loss = loss + 0.5 * self.mu * torch.stack([p.square().sum() for p in parts]).sum()
        return loss


def angle_loss(features: torch.Tensor, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the cosines of features (B, d) and embeddings (C, d) as logits, for labels (B,)."""
    return F.cross_entropy(F.cosine_similarity(features[:, None], embeddings[None], dim=2), labels)


def magnitude_loss(features: torch.Tensor, aims: torch.Tensor, kind: Magnitude) -> torch.Tensor:
    """How far features (B, d) are from their aims (B, d): `GPFL.magnitude`."""
    if kind == "batch":
        return torch.linalg.vector_norm(features - aims)
    return (features - aims).square().sum(1).mean()


def conditioned(network: nn.Module, classes: int, name: str = "") -> nn.Module:
    """A network with a `ConditionedHead` around its own head.

    Args:
        network: Is head(body(images)).
        classes: Number of classes, >= 1.
        name: Of the network, for messages.
    """
    features, own = features_of(network, name), body_and_head(network)[1]
    return with_head(network, ConditionedHead(features, classes, own).to(next(own.parameters())))


def built(build: Callable[[], nn.Module], name: str, classes: int) -> nn.Module:
    """A new network with a `ConditionedHead`."""
    return conditioned(build(), classes, name)
