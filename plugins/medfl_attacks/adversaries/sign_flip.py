"""Poisoning attack that replies with the update of opposite sign."""

from __future__ import annotations

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import AttackerKnowledge, ReplyAdversary
from medfl.types import Tensors


class SignFlip(ReplyAdversary):
    """Attackers reply with their update times -`scale`.

    Attributes:
        scale: Factor of the negated update, > 0. With 1 the update keeps its norm, so a bound on norms doesn't detect
            the attack.

    Source: Li, Xu, Chen, Giannakis, Ling, AAAI 2019.
    """

    scale: float = Field(1.0, gt=0, allow_inf_nan=False)

    def reply(self, update: Tensors, knowledge: AttackerKnowledge, generator: torch.Generator) -> Tensors:
        """Return the attacker's reply in place of its update: the update times -`scale`."""
        return {name: -self.scale * tensor for name, tensor in update.items()}
