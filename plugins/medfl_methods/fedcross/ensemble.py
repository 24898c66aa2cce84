"""Several networks that answer as one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from medfl.objectives import Objective


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
