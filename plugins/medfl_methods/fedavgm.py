"""FedAvgM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from medfl.contract import Capability, ReducesTo, Server
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.server_optimizer import momentum_step
from medfl.types import Meta, Tensors


class FedAvgM(Averaging):
    """FedAvg with momentum at the server: v <- beta v + mean update, w <- w + server_lr v.

    v starts at 0, so the first round is FedAvg's. It is no moving average: the mean update is not scaled by 1 - beta,
    and a steady update moves the model 1 / (1 - beta) times as far as in FedAvg. Momentum acts on trainable parameters
    only; the statistics of normalisation layers are averaged as in FedAvg. ``beta = 0`` with ``server_lr = 1`` makes
    this FedAvg; so it is in the preset ``flower``, whose library begins without momentum.

    When to use it: When few or unlike sites take part in each round, so that FedAvg's model swings from round to round:
    momentum evens out whose turn it was. With a large ``beta`` the model may overshoot; then lower ``beta`` or the
    sites' learning rate.

    Attributes:
        beta: How much of the velocity is kept from round to round, in [0, 1). The paper's grid is 0, 0.7, 0.9, 0.97,
            0.99, 0.997.
        server_lr: Learning rate of the server, > 0.
        nesterov: Step by the mean update + beta v, with the new v, instead of by v. The first round is then 1 + beta
            times FedAvg's.

    Source: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, arXiv 1909.06335, 2019.
    """

    name = "fedavgm"
    family = "averaging"
    paper = "Hsu, Qi, Brown, 2019"
    summary = "FedAvg with momentum at the server"
    supports = frozenset({Capability.DP_SGD, Capability.ROBUST})

    presets: ClassVar[Mapping[str, Meta]] = {"paper": {"beta": 0.9}, "flower": {"beta": 0.0}, "medfl": {"beta": 0.9}}
    reduces_to: ClassVar[tuple[ReducesTo, ...]] = (ReducesTo("fedavg", {"beta": 0.0, "server_lr": 1.0}),)

    beta: float = Field(0.9, ge=0, lt=1)
    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False)
    nesterov: bool = False

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """A step with momentum."""
        parameters = server.state.meta["parameters"]
        return momentum_step(server, old, mean, parameters, self.beta, self.server_lr, self.nesterov)
