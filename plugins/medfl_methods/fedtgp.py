"""FedTGP: personal models that share trainable global prototypes of the classes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from medfl.contract import Capability, Server
from medfl.toolkit.local_training import on_cpu
from medfl.toolkit.model_transfer import is_finite
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.prototypes import PROTOTYPE_PREFIX, PrototypeSharing
from medfl.types import Meta, Tensors
from medfl.utils.rng import seeded_generators

logger = logging.getLogger(__name__)
"""Logger of this module."""

GENERATOR_PREFIX = "generator/"
"""Prefix, in the server's state, of the network that generates the prototypes."""


class FedTGP(PrototypeSharing):
    """Trainable global prototypes (FedTGP): `fedproto` with prototypes that the server trains to be separable.

    Sites train as in `fedproto`, with the squared distance divided by the number of features. The server has a small
    network (an embedding and two linear layers) that generates a prototype of each class. It trains this network such
    that the prototypes are near the sites' prototypes and far apart between classes. Sites receive the prototypes of
    the classes that any site has ever sent. If the server's training diverges, the server keeps its previous
    prototypes.

    Update rule:
        In each round, the server trains its prototypes P_c on the sites' prototypes p of class c, by cross entropy with
        the logits

            -(||p - P_c'|| + m [c' = c])    for all classes c'

        The adaptive margin m is the largest distance of a class to its nearest other class, at most `tau_margin`. The
        distances use the mean prototypes of the classes that were sent. If only one class was sent, m is `tau_margin`.

    When to use it: As `fedproto`, when the sites' features of a class differ so much that their mean is near the mean
    of another class.

    Limits: **A prototype is the mean of a site's patients of a class**, who may be few; the server sees the prototypes
    of each site.

    Limit cases: With ``lam = 0``, this method is `local` if all sites take part in each round.

    Attributes:
        lam: Weight of the distance to the prototypes, >= 0. Range in the authors' runs: 0.1 to 10.
        tau_margin: Largest margin, > 0.
        server_epochs: Epochs of the server's training in a round, >= 0.
        server_lr: Learning rate of the server's SGD, > 0.
        server_batch: Prototypes in a batch of the server's training, >= 1.

    Source: Zhang, Liu, Hua, Cao, AAAI 2024, equations 6 to 9, and its released code.
    """

    name = "fedtgp"
    family = "personal"
    paper = "Zhang et al., AAAI 2024"
    summary = "FedProto with global prototypes that the server trains to be separable"
    supports = frozenset({Capability.DIFFERENT_NETWORKS})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"lam": 0.1, "inference": "prototype"}, "medfl": {}}

    tau_margin: float = Field(100.0, gt=0, allow_inf_nan=False)
    server_epochs: int = Field(100, ge=0)
    server_lr: float = Field(0.01, gt=0, allow_inf_nan=False)
    server_batch: int = Field(10, ge=1)

    def setup(self, server: Server) -> None:
        """Initialise the prototype generator, and store it in the server's state."""
        super().setup(server)
        with seeded_generators(server.settings.seed, "initial", "trainable prototypes"):
            generator = self.build_generator(server)
        set_auxiliary_state(server, GENERATOR_PREFIX, on_cpu(generator.state_dict()))

    def build_generator(self, server: Server) -> TrainablePrototypes:
        """Build a new prototype generator."""
        return TrainablePrototypes(server.task.objective.classes, server.state.meta["features"])

    def update_prototypes(self, server: Server, sent: Mapping[str, Tensors], metas: Mapping[str, Meta]) -> None:
        """Train the global prototypes on the sites' prototypes, and store them in the server's state."""
        pairs = [(int(label), mean) for _, own in sorted(sent.items()) for label, mean in sorted(own.items())]
        if not pairs:
            return
        device = server.task.device
        rows, labels = torch.stack([mean for _, mean in pairs]), torch.tensor([label for label, _ in pairs])
        means = torch.stack([rows[labels == label].mean(0) for label in labels.unique()])
        generator = self.build_generator(server)
        generator.load_state_dict(auxiliary_state(server, GENERATOR_PREFIX))
        generator.to(device)
        optimizer = torch.optim.SGD(generator.parameters(), lr=self.server_lr)
        class_margin = adaptive_margin(means, self.tau_margin)
        stream = server.rng("prototypes")
        for _ in range(self.server_epochs):
            for batch in torch.randperm(len(rows), generator=stream).split(self.server_batch):
                optimizer.zero_grad(set_to_none=True)
                contrastive_loss(rows[batch].to(device), generator(), labels[batch].to(device), class_margin).backward()
                optimizer.step()
        state = on_cpu(generator.state_dict())
        with torch.no_grad():
            trained = generator().cpu()
        if not is_finite(state | {"prototypes": trained}):
            logger.warning(
                "Round %d: the training of the prototypes diverged; the server keeps the previous ones.", server.round
            )
            return
        known = set(auxiliary_state(server, PROTOTYPE_PREFIX)) | {str(label) for label, _ in pairs}
        set_auxiliary_state(server, GENERATOR_PREFIX, state)
        set_auxiliary_state(server, PROTOTYPE_PREFIX, {label: trained[int(label)].clone() for label in sorted(known)})


class TrainablePrototypes(nn.Module):
    """Generator of class prototypes: an embedding per class and two linear layers with a ReLU between them.

    Args:
        classes: Number of classes, >= 1.
        features: Number of features of a prototype, >= 1.

    Attributes:
        embedding: Trainable vector of each class.
        layers: Linear layers that compute the prototypes from the vectors.
    """

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, features)
        self.layers = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, features))

    def forward(self) -> torch.Tensor:
        """Return the prototypes, shape (classes, features)."""
        prototypes: torch.Tensor = self.layers(self.embedding.weight)
        return prototypes


def distances(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean distances between two sets of vectors; exactly 0 for equal vectors.

    Args:
        rows: Vectors of shape (n, d).
        others: Vectors of shape (m, d).

    Returns:
        Distances of shape (n, m), computed from differences.
    """
    return torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")


def adaptive_margin(means: torch.Tensor, tau: float) -> float:
    """Compute the adaptive margin: the largest distance of a class to its nearest other class, at most `tau`.

    For a single class it is `tau`.

    Args:
        means: Mean prototypes of the classes that were sent, shape (k, d).
        tau: Largest margin, > 0.
    """
    if len(means) < 2:
        return tau
    gaps = distances(means, means).fill_diagonal_(torch.inf).min(dim=1).values
    return min(float(gaps.max()), tau)


def contrastive_loss(rows: torch.Tensor, prototypes: torch.Tensor, labels: torch.Tensor, margin: float) -> torch.Tensor:
    """Compute the loss of the prototypes: cross entropy of the logits -(distance + margin of the true class).

    Args:
        rows: Prototypes of sites, shape (n, d).
        prototypes: Trained prototypes of all classes, shape (classes, d).
        labels: Classes of the rows, shape (n,).
        margin: Margin m, >= 0.
    """
    return F.cross_entropy(-(distances(rows, prototypes) + margin * F.one_hot(labels, len(prototypes))), labels)
