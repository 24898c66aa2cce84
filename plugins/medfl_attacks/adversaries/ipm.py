"""Inner product manipulation: a reply against the honest ones."""

from __future__ import annotations

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import Knowledge, ReplyAdversary
from medfl.types import Tensors


class InnerProduct(ReplyAdversary):
    """All attackers reply with the mean of the honest updates times -`epsilon`.

    They know all honest replies. A mean over n sites, m of them attackers, goes the wrong way if epsilon > (n - m) / m;
    a small one goes unnoticed by rules that look at distances, and slows the others down.

    Attributes:
        epsilon: > 0.

    Source: Xie, Koyejo, Gupta, UAI 2019.
    """

    epsilon: float = Field(0.5, gt=0, allow_inf_nan=False)

    def reply(self, update: Tensors, knowledge: Knowledge, generator: torch.Generator) -> Tensors:
        """The same for all attackers; where no honest site replied, the attacker's own update."""
        mean = knowledge.honest_mean
        return {name: -self.epsilon * mean[name] if name in mean else tensor for name, tensor in update.items()}
