"""Several networks whose predictions are averaged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import nn

from medfl.objectives import Objective, read_objective
from medfl.types import Meta


class Ensemble(nn.Module):
    """The mean of what networks predict, such as the class probabilities, as outputs of one network.

    Args:
        members: At least one.
        objective: Says how outputs are brought together (`Objective.together`).
    """

    def __init__(self, members: Iterable[nn.Module], objective: Objective) -> None:
        super().__init__()
        self._objective = objective
        self.members = nn.ModuleList(members)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Outputs (B, ...) of images (B, C, *spatial)."""
        return self._objective.together(torch.stack([member(images) for member in self.members]))


def ensemble_of(network: nn.Module, size: int, objective: Meta) -> Ensemble:
    """Build an ensemble of copies of a network.

    Args:
        network: The first member.
        size: Number of members, >= 1.
        objective: What is learned, as `Objective.facts`.
    """
    return Ensemble((copy.deepcopy(network) for _ in range(size)), read_objective(objective))


def new_ensemble(build: Callable[[], nn.Module], size: int, objective: Meta) -> Ensemble:
    """Build an ensemble of new networks; see `ensemble_of`."""
    return ensemble_of(build(), size, objective)
