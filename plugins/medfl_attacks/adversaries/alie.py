"""Poisoning attack ALIE ("A Little Is Enough"): replies that stay within the spread of the honest updates."""

from __future__ import annotations

import logging

import torch
from pydantic import Field
from scipy.stats import norm

from medfl.engine.adversaries.adversary import AttackerKnowledge, ReplyAdversary
from medfl.types import Tensors

logger = logging.getLogger(__name__)

WEAK_Z = 0.3
"""Value of z below which the attack hardly changes the mean, so that a warning is logged."""


class Alie(ReplyAdversary):
    """All attackers reply with the mean of the honest updates minus z of their standard deviations, in each coordinate.

    The attackers know all honest replies.

    Attributes:
        z: Number of standard deviations, >= 0. None means the value of `supporter_quantile`: the largest z with
            which the attackers, together with the honest replies that are farther from the mean, are still a majority.
            If few of the sites attack, that value is close to 0; `check` then logs a warning.

    Source: Baruch, Baruch, Goldberg, NeurIPS 2019, Algorithm 3.
    """

    z: float | None = Field(None, ge=0, allow_inf_nan=False)

    def reply(self, update: Tensors, knowledge: AttackerKnowledge, generator: torch.Generator) -> Tensors:
        """Return the attacker's reply in place of its update; it is the same for all attackers.

        If no honest site replied, return the attacker's honest update.
        """
        z = supporter_quantile(len(knowledge.replies), len(knowledge.attackers)) if self.z is None else self.z
        mean = knowledge.honest_mean
        moved = {name: mean[name] - z * deviation for name, deviation in knowledge.honest_deviation.items()}
        return {name: moved.get(name, tensor) for name, tensor in update.items()}

    def check(self, sites: int, attackers: int) -> None:
        """Log a warning if z is so small that the attack has almost no effect."""
        z = supporter_quantile(sites, attackers) if self.z is None else self.z
        if z < WEAK_Z:
            logger.warning(
                "The attack 'alie' by %d of %d sites has z = %.2f and almost no effect: set adversaries.z, or use more "
                "attackers.",
                attackers,
                sites,
                z,
            )


def supporter_quantile(sites: int, attackers: int) -> float:
    """Return the default z of ALIE, at least 0.

    z is chosen so that the honest replies farther from the mean than the attackers' reply (the supporters) are just
    enough to make the attackers a majority: z = Phi^-1((n - m - s) / (n - m)) with s = floor(n / 2) + 1 - m supporters
    (Baruch et al., section 3). Phi^-1 is the quantile function of the normal distribution. If the attackers are already
    a majority, they need no supporters, and the result is about 6.

    Args:
        sites: Number of sites, n.
        attackers: Number of attackers, m.
    """
    supporters = sites // 2 + 1 - attackers
    honest = max(sites - attackers, 1)
    share = (honest - supporters) / honest
    return max(0.0, float(norm.ppf(min(share, 1 - 1e-9))))
