"""FLASH."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from medfl.contract import Capability, Server
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.server_optimizer import remember, remembered, stepped
from medfl.types import Meta, Tensors

logger = logging.getLogger(__name__)


class Flash(Averaging):
    """Adam at the server, which takes longer steps where the updates change suddenly, as when the data drift.

    All for each coordinate, of the plain mean update D: m <- beta1 m + (1 - beta1) D; v' = beta2 v + (1 - beta2) D^2;
    b = |v| / (|D^2 - v'| + |v|), which is 0 where both are; delta <- b delta + (1 - b) (D^2 - v'); then
    w <- w + eta m / (sqrt(v') - delta + tau), and v <- v'. m, v and delta are 0 at first. Buffers are plainly averaged.

    sqrt(v') - delta falls below zero once D is longer than about sqrt(1 - beta2), and such a step would go uphill
    (`guard`). No setting makes it another method. The paper's sites also stop early by their validation loss; here they
    train as long as the run says.

    When to use it: As `fedadam`, when what sites see is expected to change in the course of the run.

    Attributes:
        eta: Learning rate of the server, > 0.
        beta1: How much of the last direction is kept, in [0, 1).
        beta2: How much of the last second moment is kept, in [0, 1).
        tau: Added to the denominator, > 0.
        guard: Whether the denominator is tau at least (ours). Without, a denominator below zero is warned of.

    Source: Panchal, Choudhary, Mitra, Mukherjee, Sarkhel, Mitra, Guan, ICML 2023, Algorithm 1.
    """

    name = "flash"
    family = "averaging"
    paper = "Panchal et al., ICML 2023"
    summary = "Adam at the server, which takes longer steps where the updates change suddenly"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"guard": False}, "medfl": {}}

    eta: float = Field(0.01, gt=0, allow_inf_nan=False)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0, allow_inf_nan=False)
    guard: bool = True

    def weight(self, meta: Meta) -> float:
        """All sites weigh alike."""
        return 1.0

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """The step; m, v and delta are kept as ``server/first/NAME``, ``server/second/NAME``, ``server/drift/NAME``."""
        steps, uphill = Tensors(), 0
        for name in (name for name in server.state.meta["parameters"] if name in mean):
            update = mean[name]
            first, second, drift = (remembered(server, what, name, update) for what in ("first", "second", "drift"))
            first = self.beta1 * first + (1 - self.beta1) * update
            new = self.beta2 * second + (1 - self.beta2) * update.square()
            surprise = update.square() - new
            share = (second / (surprise.abs() + second)).nan_to_num(0.0)
            drift = share * drift + (1 - share) * surprise
            below = new.sqrt() - drift + self.tau
            uphill += int((below <= 0).sum())
            steps[name] = self.eta * first / (below.clamp(min=self.tau) if self.guard else below)
            for what, value in {"first": first, "second": new, "drift": drift}.items():
                remember(server, what, name, value, old[name])
        if uphill and not self.guard:
            logger.warning(
                "Round %d: %d coordinates of FLASH's denominator are not above zero, so their steps go uphill. Set "
                "guard to true.",
                server.round,
                uphill,
            )
        return stepped(old, mean | steps)
