"""Several networks that answer as one."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn


class Ensemble(nn.Module):
    """The mean of the class probabilities of networks, as logits: their softmax is that mean.

    Args:
        members: At least one; each maps images to logits (B, num_classes).
    """

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, num_classes) of images (B, C, *spatial)."""
        each = torch.stack([member(images).float().log_softmax(dim=1) for member in self.members])
        return each.logsumexp(dim=0) - math.log(len(self.members))
