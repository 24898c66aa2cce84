"""A reply without training."""

from __future__ import annotations

import torch
from pydantic import Field

from medfl.engine.adversaries.adversary import Knowledge, ReplyAdversary, gaussian_noise, root_mean_square
from medfl.types import Tensors


class FreeRider(ReplyAdversary):
    """Attackers want the common model for nothing: they reply with zeros, or with how the common model changed last.

    Attributes:
        disguise: Reply with the last change of the server's model, as far as attackers saw it, in place of zeros; in
            their first round there is none.
        noise: Standard deviation of noise on what they reply, over the root mean square of the last change, >= 0.

    Source: Fraboni, Vidal, Lorenzi, AISTATS 2021 (zeros, noise); Lin, Du, Liu, arXiv 1911.12560 (the last change).
    """

    disguise: bool = False
    noise: float = Field(0.0, ge=0, allow_inf_nan=False)

    @property
    def remembers(self) -> bool:
        """With a disguise or noise."""
        return self.disguise or self.noise > 0

    def reply(self, update: Tensors, knowledge: Knowledge, generator: torch.Generator) -> Tensors:
        """Zeros, or the last change, and noise."""
        last = knowledge.last_change
        drawn = gaussian_noise(update, self.noise * root_mean_square(last), generator)
        same = {name: last[name] for name in update if self.disguise and name in last}
        return {name: drawn[name] + same.get(name, torch.zeros_like(tensor)) for name, tensor in update.items()}
