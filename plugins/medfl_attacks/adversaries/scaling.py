"""An update that is long enough to be all that counts."""

from __future__ import annotations

import math

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import Knowledge, ReplyAdversary
from medfl.types import Tensors


class Scaling(ReplyAdversary):
    """Attackers reply with a multiple of their update.

    Attributes:
        scale: The factor, > 0; None makes up for the others' weights, the images of all sites in the round over those
            of the attackers: if the others hardly move, the mean is the attackers' own model.

    Source: Bagdasaryan, Veit, Hua, Estrin, Shmatikov, AISTATS 2020, equation 3.
    """

    scale: float | None = Field(None, gt=0, allow_inf_nan=False)

    def reply(self, update: Tensors, knowledge: Knowledge, generator: torch.Generator) -> Tensors:
        """scale times the update."""
        sizes = knowledge.sizes
        attacking = math.fsum(sizes[site] for site in knowledge.attackers)
        factor = math.fsum(sizes.values()) / attacking if self.scale is None else self.scale
        return {name: factor * tensor for name, tensor in update.items()}
