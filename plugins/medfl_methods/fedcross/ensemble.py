"""Ensemble of networks that averages their predictions. Exported bundles refer to it by its import path."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import nn

from medfl.objectives import Objective, read_objective
from medfl.types import Meta


class Ensemble(nn.Module):
    """Average of the predictions of several networks, such as class probabilities, as outputs of a single network.

    Args:
        members: Networks, at least one.
        objective: Objective (kind of task) that defines how outputs are averaged (`Objective.average_outputs`).
    """

    def __init__(self, members: Iterable[nn.Module], objective: Objective) -> None:
        super().__init__()
        self._objective = objective
        self.members = nn.ModuleList(members)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the averaged outputs (B, ...) of the members for images (B, C, *spatial)."""
        return self._objective.average_outputs(torch.stack([member(images) for member in self.members]))


def ensemble_of(network: nn.Module, size: int, objective: Meta) -> Ensemble:
    """Return an ensemble of `size` copies of a network, whose weights are loaded later.

    Args:
        network: Network to copy.
        size: Number of members, >= 1.
        objective: Configuration of the objective, a dict as in `Objective.facts`.
    """
    return Ensemble((copy.deepcopy(network) for _ in range(size)), read_objective(objective))


def new_ensemble(build: Callable[[], nn.Module], size: int, objective: Meta) -> Ensemble:
    """Build a network and return an ensemble of copies of it; see `ensemble_of`.

    Args:
        build: Function that builds the network.
        size: Number of members, >= 1.
        objective: Configuration of the objective, a dict as in `Objective.facts`.
    """
    return ensemble_of(build(), size, objective)
