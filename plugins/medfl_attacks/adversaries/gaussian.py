"""Poisoning attack that replies with Gaussian noise instead of an update."""

from __future__ import annotations

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import AttackerKnowledge, ReplyAdversary, gaussian_noise, root_mean_square
from medfl.types import Tensors


class Gaussian(ReplyAdversary):
    """Attackers reply with Gaussian noise of mean 0, which contains no information about the data.

    Attributes:
        scale: Standard deviation relative to the root mean square of the attacker's update, > 0. With 1 the noise has
            about the same norm as the update.

    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017, section 5.
    """

    scale: float = Field(1.0, gt=0, allow_inf_nan=False)

    def reply(self, update: Tensors, knowledge: AttackerKnowledge, generator: torch.Generator) -> Tensors:
        """Return the attacker's reply in place of its update: Gaussian noise in the shapes of the update."""
        return gaussian_noise(update, self.scale * root_mean_square(update), generator)
