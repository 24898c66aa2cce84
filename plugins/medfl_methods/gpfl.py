"""GPFL: global and personal features from one body, through a shared conditional layer."""

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
from medfl.networks.parts import body_and_head, feature_count, head_prefix, replace_head
from medfl.task import Task
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.body_sharing import BodySharing
from medfl.toolkit.fit import Fit
from medfl.training.loop import Batch

MagnitudeDistance = Literal["batch", "mean_square"]
"""Distance between features and embeddings: ``batch`` is the Euclidean distance of the whole batch, ``mean_square`` the
mean squared distance of the images."""

PERSONAL_HEAD = "own"
"""Name of a site's personal head in a `ConditionedHead`."""

CLASS_SHARES = "class_shares"
"""Name of the buffer with a site's class shares in a `ConditionedHead`."""


class ConditionedHead(nn.Module):
    """Conditional valve (CoV), an embedding per class, and a personal head on the features behind the valve.

    The valve transforms features f under a condition u, a vector: CoV(f, u) = ReLU((a(u) + 1) f + b(u)).

    Args:
        features: Number of features d of the body, >= 1.
        classes: Number of classes C, >= 1.
        own: Personal head, which maps features (B, d) to outputs.

    Attributes:
        scale: Network a(u) of the valve.
        shift: Network b(u) of the valve.
        embeddings: Embedding of each class, shape (C, d).
        class_shares: Weights of the embeddings in the personal condition, shape (C,), >= 0, with sum 1.
        own: Personal head.
    """

    def __init__(self, features: int, classes: int, own: nn.Module) -> None:
        super().__init__()
        self.scale, self.shift = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features)) for _ in range(2)
        )
        self.embeddings = nn.Parameter(torch.randn(classes, features))
        self.class_shares: torch.Tensor
        self.register_buffer(CLASS_SHARES, torch.full((classes,), 1 / classes))
        self.own = own

    def valve(self, features: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Compute the conditional valve: features f under a condition u become ReLU((a(u) + 1) f + b(u)).

        Args:
            features: Features f, shape (B, d).
            condition: Condition u, shape (d,).
        """
        return F.relu((self.scale(condition) + 1) * features + self.shift(condition))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the outputs for features (B, d) under the personal condition."""
        outputs: torch.Tensor = self.own(self.valve(features.flatten(1), self.class_shares @ self.embeddings))
        return outputs


class GPFL(BodySharing):
    """Global and personal feature learning (GPFL): a shared conditional layer derives both from one body.

    Sites share the body, an embedding of each class, and the conditional valve (CoV). Heads stay at the sites. The
    valve transforms the features f of the body under a condition u:

        CoV(f, u) = ReLU((a(u) + 1) f + b(u))

    where a and b are each a linear layer, a ReLU and a layer norm. A site derives two conditions from the received
    embeddings V and fixes them for the round: the global condition g is their mean, and the personal condition p is
    their mean weighted by the site's class shares. The personal model is the site's head on CoV(f, p), with p of its
    current V. A site that has not trained yet uses g for p.

    Update rule:
        For an image of class y, with V_y the received embedding of the class, a site minimises

            F(head(CoV(f, p)))
            + cross entropy of the cosines of CoV(f, g) and all embeddings V
            + lam distance(CoV(f, g), V_y)
            + (mu / 2) (||V||^2 + ||parameters of CoV||^2)

    When to use it: When sites have different class distributions, each needs a model for its own patients, and the body
    should serve all sites. Computation is little more than with `fedper`.

    Limits: The changes of V reveal which classes a site has. Released code builds the conditions from a site's old
    embeddings, or divides p by the number of classes once more; this implementation does neither. No setting makes this
    another method.

    Attributes:
        lam: Weight of the distance to the embeddings, >= 0.
        mu: Weight decay of embeddings and valve, >= 0, in addition to the weight decay of the run's optimiser.
        magnitude: Distance: ``batch`` is the Euclidean distance of the whole batch, as in released code, which grows
            with the square root of the batch size; ``mean_square`` is the mean squared distance of the images.

    Source: Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan, ICCV 2023, and its released code.
    """

    name = "gpfl"
    family = "personal"
    paper = "Zhang et al., ICCV 2023"
    summary = "global and personal features from one shared body and a shared conditional layer; personal heads"
    supports = frozenset({Capability.DIFFERENT_HEADS, Capability.ROBUST})

    needs: ClassVar[frozenset[Need]] = frozenset({"class_labels", "linear_head"})
    """Requirements that the task or the run must meet, otherwise the run is refused before it starts."""

    lam: float = Field(0.01, ge=0, allow_inf_nan=False)
    mu: float = Field(0.01, ge=0, allow_inf_nan=False)
    magnitude: MagnitudeDistance = "batch"

    # ---- networks

    def task_of(self, task: Task) -> Task:
        """Return the task with the method's networks, which have a `ConditionedHead`."""
        for name in task.networks:
            task = task.with_network(
                name, partial(build_with_conditioned_head, partial(task.build, name), name, task.objective.classes)
            )
        return task

    def network_config(self, model: Model, network_def: Any) -> Any:
        """Return the MONAI configuration of the network in an exported bundle, with a `ConditionedHead`."""
        classes = next(len(tensor) for name, tensor in model.tensors.items() if name.endswith(f".{CLASS_SHARES}"))
        config = {"_target_": f"{__name__}.with_conditioned_head", "network": network_def, "classes": classes}
        return config | {"name": model.network}

    def shared_names(self, model: nn.Module, norm_sync: str) -> list[str]:
        """Return the state-dict names of the exchanged tensors: all but the personal head and the class shares."""
        path = head_prefix(model, type(model).__name__)
        own = (f"{path}{PERSONAL_HEAD}.", f"{path}{CLASS_SHARES}")
        return [name for name in Averaging.shared_names(self, model, norm_sync) if not name.startswith(own)]

    # ---- a site

    def before_fit(self, fit: Fit) -> None:
        """Set the site's class shares in the network; compute both conditions from the received embeddings."""
        head = cast("ConditionedHead", body_and_head(fit.model)[1])
        counts = torch.bincount(labels_of(fit.site.train), minlength=len(head.class_shares))
        head.class_shares.copy_(counts.double() / counts.sum())
        received = head.embeddings.detach().clone()
        fit.extra |= {"embeddings": received, "common": received.mean(0), "own": head.class_shares @ received}

    def loss(self, fit: Fit, batch: Batch) -> torch.Tensor:
        """Return the task's loss of the personal head plus the three further terms."""
        task, (body, part) = fit.site.task, body_and_head(fit.model)
        head, features = cast("ConditionedHead", part), body(batch.images).flatten(1)
        labels: torch.Tensor = task.objective.class_labels(batch.targets)  # type: ignore[assignment]
        common = head.valve(features, fit.extra["common"])
        loss: torch.Tensor = task.loss(head.own(head.valve(features, fit.extra["own"])), batch.targets)
        loss = loss + angle_loss(common, head.embeddings, labels)
        if self.lam:
            loss = loss + self.lam * magnitude_loss(common, fit.extra["embeddings"][labels], self.magnitude)
        if self.mu:
            parts = [p for name, p in head.named_parameters() if not name.startswith(f"{PERSONAL_HEAD}.")]
            loss = loss + 0.5 * self.mu * torch.stack([p.square().sum() for p in parts]).sum()
        return loss


def angle_loss(features: torch.Tensor, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the cosines of features (B, d) and embeddings (C, d), for labels (B,)."""
    return F.cross_entropy(F.cosine_similarity(features[:, None], embeddings[None], dim=2), labels)


def magnitude_loss(features: torch.Tensor, targets: torch.Tensor, kind: MagnitudeDistance) -> torch.Tensor:
    """Compute the distance of features to embeddings.

    Args:
        features: Features (B, d).
        targets: Embedding of each image's class, (B, d).
        kind: ``batch`` for the Euclidean distance of the whole batch, ``mean_square`` for the mean squared distance.
    """
    if kind == "batch":
        return torch.linalg.vector_norm(features - targets)
    return (features - targets).square().sum(1).mean()


def with_conditioned_head(network: nn.Module, classes: int, name: str = "") -> nn.Module:
    """Return a network with a `ConditionedHead` around its own head.

    Args:
        network: Network that computes head(body(images)).
        classes: Number of classes, >= 1.
        name: Name of the network, for error messages.
    """
    features, own = feature_count(network, name), body_and_head(network)[1]
    return replace_head(network, ConditionedHead(features, classes, own).to(next(own.parameters())))


def build_with_conditioned_head(build: Callable[[], nn.Module], name: str, classes: int) -> nn.Module:
    """Build a network with a `ConditionedHead`.

    Args:
        build: Function that builds the network.
        name: Name of the network, for error messages.
        classes: Number of classes, >= 1.
    """
    return with_conditioned_head(build(), classes, name)
