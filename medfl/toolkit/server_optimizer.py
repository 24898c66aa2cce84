"""Server optimisers: the mean update is the direction of a step, and the server remembers those before.

They act on trainable parameters only. Float buffers are plainly averaged and integer ones take the largest value, as in
FedAvg (rule G-2): a server optimiser could turn a running variance negative. All is computed in the mean's float64;
what is kept is rounded, what is added is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field

from medfl.contract import Server
from medfl.toolkit.aggregation import add_update
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.kept import KEPT
from medfl.types import Tensors


def momentum_step(
    server: Server,
    old: Tensors,
    mean: Tensors,
    parameters: Iterable[str],
    beta: float,
    server_lr: float = 1.0,
    nesterov: bool = False,
) -> Tensors:
    """A step with momentum: v <- beta v + mean update, w <- w + server_lr v.

    v starts at 0, so the first step is that of plain averaging. It is kept as ``server/velocity/NAME``.

    Args:
        server: Its state's tensors hold v, and are changed.
        old: The shared tensors that the sites started from.
        mean: The mean update; a tensor that it lacks stays as it is.
        parameters: Names that momentum acts on; all others are plainly averaged.
        beta: In [0, 1). With 0, and `server_lr` 1, this is plain averaging bit by bit.
        server_lr: > 0.
        nesterov: Step by the mean update + beta v, with the new v, instead of by v.

    Returns:
        The new shared tensors.

    Source: Hsu, Qi, Brown, arXiv 1909.06335, 2019.
    """
    steps: Tensors = {}
    for name in parameters:
        if name in mean:
            velocity = beta * remembered(server, "velocity", name, mean[name]) + mean[name]
            remember(server, "velocity", name, velocity, old[name])
            steps[name] = server_lr * (mean[name] + beta * velocity if nesterov else velocity)
    return stepped(old, mean | steps)


class AdaptiveServer(Averaging):
    """The base of methods whose server scales each coordinate's step by the size of the updates so far.

    A child gives `second_moment`, and `rate` where it changes from round to round.

    Attributes:
        eta: Learning rate of the server, > 0. While tau is far below the updates, it is about how far a coordinate
            moves in a round, whatever the size of its update.
        beta1: How much of the last direction is kept, in [0, 1).
        tau: Added to the denominator, > 0: updates far below it move nothing.
        v0: What the second moment starts at: ``tau2`` tau squared, or ``zero``.
    """

    eta: float = Field(0.01, gt=0, allow_inf_nan=False)
    beta1: float = Field(0.9, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0, allow_inf_nan=False)
    v0: Literal["tau2", "zero"] = "tau2"

    def second_moment(self, kept: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """The new second moment from the last one and the squared mean update, all >= 0 and of one shape."""
        raise NotImplementedError

    def rate(self, round_: int) -> float:
        """The server's learning rate in a round, counted from 1."""
        return self.eta

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """m <- beta1 m + (1 - beta1) mean update, v by `second_moment`, w <- w + rate m / (sqrt(v) + tau).

        m and v are kept as ``server/first/NAME`` and ``server/second/NAME``.
        """
        steps: Tensors = {}
        for name in server.state.meta["parameters"]:
            if name in mean:
                first = self.beta1 * remembered(server, "first", name, mean[name]) + (1 - self.beta1) * mean[name]
                kept = remembered(server, "second", name, mean[name], self.tau**2 if self.v0 == "tau2" else 0.0)
                second = self.second_moment(kept, mean[name].square())
                remember(server, "first", name, first, old[name])
                remember(server, "second", name, second, old[name])
                steps[name] = self.rate(server.round) * first / (second.sqrt() + self.tau)
        return stepped(old, mean | steps)


def lengthened(server: Server, mean: Tensors, length: float) -> Tensors:
    """The mean update with that of the parameters times a length; with 1 it is the mean update bit by bit.

    Args:
        server: Its state's meta lists the parameters.
        mean: The mean update, float64 for floating tensors.
        length: Of the server's step, > 0.
    """
    trained = set(server.state.meta["parameters"])
    return {name: update * length if name in trained else update for name, update in mean.items()}


def stepped(old: Tensors, steps: Tensors) -> Tensors:
    """Old tensors plus their steps; a tensor without one stays as it is."""
    return {name: add_update(tensor, steps[name]) if name in steps else tensor for name, tensor in old.items()}


def remembered(server: Server, what: str, name: str, like: torch.Tensor, start: float = 0.0) -> torch.Tensor:
    """What the server keeps for a tensor, in the type of `like`; at first `start` everywhere."""
    kept = server.state.tensors.get(f"{KEPT}{what}/{name}")
    return torch.full_like(like, start) if kept is None else kept.to(like.dtype)


def remember(server: Server, what: str, name: str, value: torch.Tensor, like: torch.Tensor) -> None:
    """Keep a value for a tensor, in the type of `like`, but in float32 at least."""
    server.state.tensors[f"{KEPT}{what}/{name}"] = value.to(torch.promote_types(like.dtype, torch.float32))
