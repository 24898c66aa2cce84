"""The opposite of one's update."""

from __future__ import annotations

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import Knowledge, ReplyAdversary
from medfl.types import Tensors


class SignFlip(ReplyAdversary):
    """Attackers reply with their update times -`scale`.

    Attributes:
        scale: > 0; 1 keeps the length of the update, so that no bound on norms sees it.

    Source: Li, Xu, Chen, Giannakis, Ling, AAAI 2019.
    """

    scale: float = Field(1.0, gt=0, allow_inf_nan=False)

    def reply(self, update: Tensors, knowledge: Knowledge, generator: torch.Generator) -> Tensors:
        """-scale times the update."""
        return {name: -self.scale * tensor for name, tensor in update.items()}
