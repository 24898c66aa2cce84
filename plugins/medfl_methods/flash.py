"""FLASH: an adaptive server optimiser that reacts to concept drift."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from medfl.contract import Capability, Server
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.server_optimizer import apply_steps, load_moment, store_moment
from medfl.types import Meta, Tensors

logger = logging.getLogger(__name__)
"""Logger of this module."""


class Flash(Averaging):
    """Adaptive server optimiser for concept drift (FLASH): larger steps when the updates change suddenly.

    Sites train as in `fedavg` and have equal weights. The server extends Adam by an estimate of the drift, which
    reduces the denominator of the step. Buffers are averaged as in `fedavg`.

    Update rule:
        For each coordinate, with the mean update D of the round and m = v = delta = 0 at first:

            m <- beta1 m + (1 - beta1) D
            v' = beta2 v + (1 - beta2) D^2
            b = |v| / (|D^2 - v'| + |v|)              (0 if both terms are 0)
            delta <- b delta + (1 - b) (D^2 - v')
            w <- w + eta m / max(sqrt(v') - delta + tau, tau)      (without guard: no maximum)
            v <- v'

    When to use it: As `fedadam`, when the data of the sites are expected to change during the run.

    Limits: sqrt(v') - delta becomes negative if D is larger than about sqrt(1 - beta2), and the step would then
    increase the loss (`guard`). In the paper, sites also stop early by their validation loss; here they train as long
    as the run's settings say. No setting makes this method `fedadam` or `fedavg`.

    Attributes:
        eta: Learning rate of the server, > 0.
        beta1: Decay rate of the first moment m, in [0, 1).
        beta2: Decay rate of the second moment v, in [0, 1).
        tau: Constant in the denominator, > 0.
        guard: Whether the denominator has the lower limit tau (an addition of medfl). Without the guard, a warning
            reports denominators that are not positive.

    Source: Panchal, Choudhary, Mitra, Mukherjee, Sarkhel, Mitra, Guan, ICML 2023, Algorithm 1.
    """

    name = "flash"
    family = "averaging"
    paper = "Panchal et al., ICML 2023"
    summary = "FedAvg with an Adam-like server optimiser that takes larger steps under concept drift"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"guard": False}, "medfl": {}}

    eta: float = Field(0.01, gt=0, allow_inf_nan=False)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0, allow_inf_nan=False)
    guard: bool = True

    def weight(self, meta: Meta) -> float:
        """Return the weight of a reply before normalisation: 1, so that all participants have equal weight."""
        return 1.0

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Return the new global tensors; update m, v and delta in the server's state.

        The server's auxiliary state stores them as ``first/NAME``, ``second/NAME`` and ``drift/NAME``, with the
        parameter's name.
        """
        steps, not_positive = Tensors(), 0
        for name in (name for name in server.state.meta["parameters"] if name in mean):
            update = mean[name]
            first, second, drift = (load_moment(server, what, name, update) for what in ("first", "second", "drift"))
            first = self.beta1 * first + (1 - self.beta1) * update
            new = self.beta2 * second + (1 - self.beta2) * update.square()
            surprise = update.square() - new
            share = (second / (surprise.abs() + second)).nan_to_num(0.0)
            drift = share * drift + (1 - share) * surprise
            denominator = new.sqrt() - drift + self.tau
            not_positive += int((denominator <= 0).sum())
            steps[name] = self.eta * first / (denominator.clamp(min=self.tau) if self.guard else denominator)
            for what, value in {"first": first, "second": new, "drift": drift}.items():
                store_moment(server, what, name, value, old[name])
        if not_positive and not self.guard:
            logger.warning(
                "Round %d: %d coordinates of FLASH's denominator are not positive, so their steps increase the loss. "
                "Set guard to true.",
                server.round,
                not_positive,
            )
        return apply_steps(old, mean | steps)
