"""FedAvgM: FedAvg with server momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from medfl.contract import Capability, ReducesTo, Server
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.server_optimizer import momentum_step
from medfl.types import Meta, Tensors


class FedAvgM(Averaging):
    """FedAvg with server momentum (FedAvgM).

    Sites train as in `fedavg`. The server accumulates the mean updates in a velocity. Momentum applies to trainable
    parameters only; the statistics of normalisation layers are averaged as in `fedavg`.

    Update rule:
        With D the weighted mean update of a round, and the velocity v = 0 at first:

            v <- beta v + D
            w <- w + server_lr v                  nesterov = false
            w <- w + server_lr (D + beta v)       nesterov = true

        The velocity is no moving average: D is not scaled by 1 - beta. A constant update therefore moves the model 1 /
        (1 - beta) times as much as in `fedavg`.

    When to use it: When few or heterogeneous sites take part in each round, so that the global model of `fedavg`
    oscillates between rounds. Momentum reduces the effect of the selection of sites.

    Limits: With a large ``beta`` the model may overshoot; then lower ``beta`` or the sites' learning rate.

    Limit cases: ``beta = 0`` with ``server_lr = 1`` is `fedavg`. The preset ``flower`` is this case, because Flower's
    default has no momentum.

    Attributes:
        beta: Momentum, in [0, 1). Grid of the paper: 0, 0.7, 0.9, 0.97, 0.99, 0.997.
        server_lr: Learning rate of the server, > 0.
        nesterov: Whether the server uses Nesterov momentum. The first step is then 1 + beta times the step of `fedavg`.

    Source: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, arXiv 1909.06335, 2019.
    """

    name = "fedavgm"
    family = "averaging"
    paper = "Hsu, Qi, Brown, 2019"
    summary = "FedAvg with server momentum"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"beta": 0.9}, "flower": {"beta": 0.0}, "medfl": {"beta": 0.9}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"beta": 0.0, "server_lr": 1.0}),)

    beta: float = Field(0.9, ge=0, lt=1)
    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False)
    nesterov: bool = False

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Return the new global tensors after a step with momentum; updates the velocity in the server's state."""
        parameters = server.state.meta["parameters"]
        return momentum_step(server, old, mean, parameters, self.beta, self.server_lr, self.nesterov)
