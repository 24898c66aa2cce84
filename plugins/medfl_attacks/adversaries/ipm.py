"""Inner product manipulation: a reply in the direction opposite to the honest updates."""

from __future__ import annotations

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import AttackerKnowledge, ReplyAdversary
from medfl.types import Tensors


class InnerProduct(ReplyAdversary):
    """All attackers reply with the mean of the honest updates times -`epsilon`.

    The attackers know all honest replies. A mean over n sites with m attackers points in the wrong direction if epsilon
    > (n - m) / m. A small epsilon passes aggregation rules that compare distances, and slows down training.

    Attributes:
        epsilon: Factor of the negated mean, > 0.

    Source: Xie, Koyejo, Gupta, UAI 2019.
    """

    epsilon: float = Field(0.5, gt=0, allow_inf_nan=False)

    def reply(self, update: Tensors, knowledge: AttackerKnowledge, generator: torch.Generator) -> Tensors:
        """Return the attacker's reply in place of its update; it is the same for all attackers.

        If no honest site replied, return the attacker's honest update.
        """
        mean = knowledge.honest_mean
        return {name: -self.epsilon * mean[name] if name in mean else tensor for name, tensor in update.items()}
