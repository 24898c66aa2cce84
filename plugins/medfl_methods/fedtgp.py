"""FedTGP."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from medfl.contract import Capability, Server
from medfl.toolkit.kept import keep, kept
from medfl.toolkit.local_training import on_cpu
from medfl.toolkit.prototypes import PROTO, PrototypeSharing
from medfl.toolkit.transfer import is_finite
from medfl.types import Meta, Tensors
from medfl.utils.rng import pinned

logger = logging.getLogger(__name__)

GENERATOR = "generator/"
"""What the names of the trainable prototypes' tensors begin with, where the server keeps them."""


class FedTGP(PrototypeSharing):
    """FedProto with prototypes that the server trains, so that they are near those of the sites and apart by class.

    Sites are those of `fedproto` with the squared distance divided by the number of features. The server has a small
    network that gives a prototype for each class (an embedding and two linear layers). In each round it is trained on
    the sites' prototypes P, to tell the class c of each by -(||P - P_c'|| + m for c' = c) as logits. The margin m is
    the largest of the distances between the mean prototype of a class and the nearest one of another, at most
    `tau_margin`, which also holds where one class alone was sent. Sites get the prototypes of the classes that any of
    them has ever sent. Where training them goes wrong the server keeps what it had.

    With ``lam = 0`` this is `local`, as long as all sites take part in each round.

    **A prototype is the mean of a site's patients of a class**, who may be few; the server sees each site's.

    When to use it: As `fedproto`, where the sites' features of a class differ so much that their mean is near that of
    another class.

    Attributes:
        lam: Weight of the distance to prototypes, >= 0. The authors' runs use 0.1 to 10.
        tau_margin: Largest margin, > 0.
        server_epochs: Epochs in which the server trains the prototypes in a round, >= 0.
        server_lr: Learning rate of its SGD, > 0.
        server_batch: Prototypes in a batch of it, >= 1.

    Source: Zhang, Liu, Hua, Cao, AAAI 2024, equations 6 to 9, and its released code.
    """

    name = "fedtgp"
    family = "personal"
    paper = "Zhang et al., AAAI 2024"
    summary = "FedProto whose server trains the prototypes of all classes to keep apart"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"lam": 0.1, "inference": "prototype"}, "medfl": {}}

    tau_margin: float = Field(100.0, gt=0, allow_inf_nan=False)
    server_epochs: int = Field(100, ge=0)
    server_lr: float = Field(0.01, gt=0, allow_inf_nan=False)
    server_batch: int = Field(10, ge=1)

    def setup(self, server: Server) -> None:
        """The first trainable prototypes."""
        super().setup(server)
        with pinned(server.settings.seed, "initial", "trainable prototypes"):
            generator = self.generator(server)
        keep(server, GENERATOR, on_cpu(generator.state_dict()))

    def generator(self, server: Server) -> TrainablePrototypes:
        """A network that gives the prototypes."""
        return TrainablePrototypes(server.task.objective.classes, server.state.meta["features"])

    def take_in(self, server: Server, sent: Mapping[str, Tensors], metas: Mapping[str, Meta]) -> None:
        """Train the prototypes on those of the sites."""
        pairs = [(int(label), mean) for _, own in sorted(sent.items()) for label, mean in sorted(own.items())]
        if not pairs:
            return
        device = server.task.device
        rows, labels = torch.stack([mean for _, mean in pairs]), torch.tensor([label for label, _ in pairs])
        means = torch.stack([rows[labels == label].mean(0) for label in labels.unique()])
        generator = self.generator(server)
        generator.load_state_dict(kept(server, GENERATOR))
        generator.to(device)
        optimizer, room = torch.optim.SGD(generator.parameters(), lr=self.server_lr), margin(means, self.tau_margin)
        stream = server.rng("prototypes")
        for _ in range(self.server_epochs):
            for batch in torch.randperm(len(rows), generator=stream).split(self.server_batch):
                optimizer.zero_grad(set_to_none=True)
                contrastive_loss(rows[batch].to(device), generator(), labels[batch].to(device), room).backward()
                optimizer.step()
        state = on_cpu(generator.state_dict())
        with torch.no_grad():
            trained = generator().cpu()
        if not is_finite(state | {"prototypes": trained}):
            logger.warning("Round %d: training the prototypes diverged; the server keeps the last.", server.round)
            return
        known = set(kept(server, PROTO)) | {str(label) for label, _ in pairs}
        keep(server, GENERATOR, state)
        keep(server, PROTO, {label: trained[int(label)].clone() for label in sorted(known)})


class TrainablePrototypes(nn.Module):
    """An embedding of each class and two linear layers with ReLU between them.

    Args:
        classes: Number of classes, >= 1.
        features: Of a prototype, >= 1.
    """

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, features)
        self.layers = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, features))

    def forward(self) -> torch.Tensor:
        """The prototypes, (classes, features)."""
        prototypes: torch.Tensor = self.layers(self.embedding.weight)
        return prototypes


def distances(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Euclidean distances (n, m) of vectors (n, d) and (m, d), by differences: exactly 0 for equal ones."""
    return torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")


def margin(means: torch.Tensor, tau: float) -> float:
    """The largest of the distances of classes to their nearest class, at most `tau`; `tau` for a single class.

    Args:
        means: Mean prototypes of the classes that were sent, (k, d).
        tau: > 0.
    """
    if len(means) < 2:
        return tau
    gaps = distances(means, means).fill_diagonal_(torch.inf).min(dim=1).values
    return min(float(gaps.max()), tau)


def contrastive_loss(rows: torch.Tensor, prototypes: torch.Tensor, labels: torch.Tensor, margin: float) -> torch.Tensor:
    """Cross entropy of -(distance + margin for the own class) as logits.

    Args:
        rows: Sites' prototypes, (n, d).
        prototypes: Of all classes, (classes, d).
        labels: Classes of the rows, (n,).
        margin: >= 0.
    """
    return F.cross_entropy(-(distances(rows, prototypes) + margin * F.one_hot(labels, len(prototypes))), labels)
