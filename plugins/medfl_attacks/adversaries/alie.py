"""A little is enough: a reply within the spread of the honest ones."""

from __future__ import annotations

import logging

import torch
from pydantic import Field
from scipy.stats import norm

from medfl.engine.adversaries.adversary import Knowledge, ReplyAdversary
from medfl.types import Tensors

logger = logging.getLogger(__name__)

WEAK = 0.3
"""Standard deviations below which the attack hardly moves anything."""


class Alie(ReplyAdversary):
    """All attackers reply with the mean of the honest updates less z of their standard deviations, in each coordinate.

    They know all honest replies.

    Attributes:
        z: >= 0; None is the largest for which a majority can still look farther out: `reach`. With few attackers among
            few sites that is next to nothing, which a warning says.

    Source: Baruch, Baruch, Goldberg, NeurIPS 2019, Algorithm 3.
    """

    z: float | None = Field(None, ge=0, allow_inf_nan=False)

    def reply(self, update: Tensors, knowledge: Knowledge, generator: torch.Generator) -> Tensors:
        """The same for all attackers; where no honest site replied, the attacker's own update."""
        z = reach(len(knowledge.replies), len(knowledge.attackers)) if self.z is None else self.z
        mean = knowledge.honest_mean
        moved = {name: mean[name] - z * deviation for name, deviation in knowledge.honest_deviation.items()}
        return {name: moved.get(name, tensor) for name, tensor in update.items()}

    def check(self, sites: int, attackers: int) -> None:
        """Warn of an attack that is none."""
        z = reach(sites, attackers) if self.z is None else self.z
        if z < WEAK:
            logger.warning(
                "ALIE with %d of %d sites has z = %.2f, next to no attack: set poison.z, or take more attackers.",
                attackers,
                sites,
                z,
            )


def reach(sites: int, attackers: int) -> float:
    """ALIE's z: so many honest replies are farther out that with them attackers are a majority; at least 0.

    Phi^-1((n - m - s) / (n - m)) with s = floor(n / 2) + 1 - m of n sites with m attackers (Baruch et al., section 3).
    A majority of attackers needs nobody: then it is 6.
    """
    supporters = sites // 2 + 1 - attackers
    honest = max(sites - attackers, 1)
    share = (honest - supporters) / honest
    return max(0.0, float(norm.ppf(min(share, 1 - 1e-9))))
