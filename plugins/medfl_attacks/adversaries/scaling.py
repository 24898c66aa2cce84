"""Model replacement attack: an update scaled up so that it dominates the mean."""

from __future__ import annotations

import math

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import AttackerKnowledge, ReplyAdversary
from medfl.types import Tensors


class Scaling(ReplyAdversary):
    """Attackers reply with a multiple of their update.

    Attributes:
        scale: Factor of the update, > 0. None means the number of training images of all sites in the round divided by
            the attackers' number of images. This factor compensates for the weights of the other sites: if their
            updates are small, the mean becomes the attackers' own model.

    Source: Bagdasaryan, Veit, Hua, Estrin, Shmatikov, AISTATS 2020, equation 3.
    """

    scale: float | None = Field(None, gt=0, allow_inf_nan=False)

    def reply(self, update: Tensors, knowledge: AttackerKnowledge, generator: torch.Generator) -> Tensors:
        """Return the attacker's reply in place of its update: the update times the factor."""
        sizes = knowledge.sizes
        attacking = math.fsum(sizes[site] for site in knowledge.attackers)
        factor = math.fsum(sizes.values()) / attacking if self.scale is None else self.scale
        return {name: factor * tensor for name, tensor in update.items()}
