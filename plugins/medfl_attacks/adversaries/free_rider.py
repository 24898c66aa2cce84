"""Free-rider attack: a reply without any training."""

from __future__ import annotations

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import AttackerKnowledge, ReplyAdversary, gaussian_noise, root_mean_square
from medfl.types import Tensors


class FreeRider(ReplyAdversary):
    """Attackers obtain the global model without training.

    They reply with zeros or with the last change of the global model.

    Attributes:
        disguise: True to reply with the last change of the server's model that the attackers observed, instead of
            zeros. In the attackers' first round no change is known, so the reply is zero.
        noise: Standard deviation of Gaussian noise on the reply, relative to the root mean square of the last change,
            >= 0.

    Source: Fraboni, Vidal, Lorenzi, AISTATS 2021 (zeros, noise); Lin, Du, Liu, arXiv 1911.12560 (the last change).
    """

    disguise: bool = False
    noise: float = Field(0.0, ge=0, allow_inf_nan=False)

    @property
    def remembers(self) -> bool:
        """True if the attack uses the last change of the global model, which a disguise or noise requires.

        The attacker is then given this change in `AttackerKnowledge.last_change`.
        """
        return self.disguise or self.noise > 0

    def reply(self, update: Tensors, knowledge: AttackerKnowledge, generator: torch.Generator) -> Tensors:
        """Return the attacker's reply in place of its update: zeros or the last change of the model, plus noise."""
        last = knowledge.last_change
        drawn = gaussian_noise(update, self.noise * root_mean_square(last), generator)
        same = {name: last[name] for name in update if self.disguise and name in last}
        return {name: drawn[name] + same.get(name, torch.zeros_like(tensor)) for name, tensor in update.items()}
