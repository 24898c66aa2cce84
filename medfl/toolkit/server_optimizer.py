"""Server optimisers: the server treats the mean update as a gradient and keeps moments from round to round.

They act on trainable parameters only. Floating buffers are averaged and integer buffers take the largest value, as in
FedAvg, because a server optimiser could make a running variance negative. Computations use the mean's
float64. Stored moments are rounded to the stored dtype; the steps use the unrounded values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field

from medfl.contract import Server
from medfl.toolkit.aggregation import add_update
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.participant_state import AUXILIARY_PREFIX
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
    """Take a step with momentum, v <- beta v + mean update and w <- w + server_lr v, and store v in the server's state.

    The velocity v starts at 0, so the first step equals plain averaging. The server's auxiliary state stores it as
    ``velocity/NAME``, with the parameter's name.

    Args:
        server: The server; its state is changed in place.
        old: Shared tensors that the sites started from.
        mean: Mean update; a tensor without an update stays unchanged.
        parameters: Names of the tensors with momentum; all others are averaged.
        beta: Momentum, in [0, 1). With 0, and `server_lr` 1, the result equals plain averaging bit by bit.
        server_lr: Learning rate of the server, > 0.
        nesterov: Whether to step by the mean update + beta v, with the new v, instead of v.

    Returns:
        The new shared tensors.

    Source: Hsu, Qi, Brown, arXiv 1909.06335, 2019.
    """
    steps: Tensors = {}
    for name in parameters:
        if name in mean:
            velocity = beta * load_moment(server, "velocity", name, mean[name]) + mean[name]
            store_moment(server, "velocity", name, velocity, old[name])
            steps[name] = server_lr * (mean[name] + beta * velocity if nesterov else velocity)
    return apply_steps(old, mean | steps)


class AdaptiveServer(Averaging):
    """Base class of methods with an adaptive server optimiser, which scales each coordinate's step by its past updates.

    A subclass implements `second_moment`, and overrides `rate` if the learning rate changes from round to round.

    Attributes:
        eta: Learning rate of the server, > 0. While `tau` is far below the updates, a coordinate moves about this far
            in a round, independent of its update's size.
        beta1: Decay of the first moment, in [0, 1).
        tau: Term added to the denominator, > 0; updates far below it have almost no effect.
        v0: Initial second moment: ``tau2`` is tau squared, ``zero`` is 0.
    """

    eta: float = Field(0.01, gt=0, allow_inf_nan=False)
    beta1: float = Field(0.9, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0, allow_inf_nan=False)
    v0: Literal["tau2", "zero"] = "tau2"

    def second_moment(self, kept: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """Compute the new second moment, >= 0.

        Args:
            kept: Previous second moment, >= 0.
            square: Squared mean update, of the same shape.
        """
        raise NotImplementedError

    def rate(self, round_: int) -> float:
        """Return the server's learning rate in a round, counted from 1."""
        return self.eta

    def server_update(self, server: Server, old: Tensors, mean: Tensors) -> Tensors:
        """Compute the new shared tensors w <- w + rate m / (sqrt(v) + tau), after updating the moments m and v.

        The first moment is m <- beta1 m + (1 - beta1) mean update; `second_moment` computes v. The server's auxiliary
        state stores them as ``first/NAME`` and ``second/NAME``, with the parameter's name.
        """
        steps: Tensors = {}
        for name in server.state.meta["parameters"]:
            if name in mean:
                first = self.beta1 * load_moment(server, "first", name, mean[name]) + (1 - self.beta1) * mean[name]
                kept = load_moment(server, "second", name, mean[name], self.tau**2 if self.v0 == "tau2" else 0.0)
                second = self.second_moment(kept, mean[name].square())
                store_moment(server, "first", name, first, old[name])
                store_moment(server, "second", name, second, old[name])
                steps[name] = self.rate(server.round) * first / (second.sqrt() + self.tau)
        return apply_steps(old, mean | steps)


def scale_parameter_updates(server: Server, mean: Tensors, length: float) -> Tensors:
    """Multiply the mean update of the trainable parameters by a step length; with 1, return it bit by bit.

    Args:
        server: The server, whose state's metadata list the parameters.
        mean: Mean update, float64 for floating tensors.
        length: Step length of the server, > 0.
    """
    trained = set(server.state.meta["parameters"])
    return {name: update * length if name in trained else update for name, update in mean.items()}


def apply_steps(old: Tensors, steps: Tensors) -> Tensors:
    """Return the old tensors plus their steps; a tensor without a step stays unchanged."""
    return {name: add_update(tensor, steps[name]) if name in steps else tensor for name, tensor in old.items()}


def load_moment(server: Server, what: str, name: str, like: torch.Tensor, start: float = 0.0) -> torch.Tensor:
    """Return a stored moment of a tensor in the dtype of `like`.

    Args:
        server: The server with the moment in its state.
        what: Name of the moment, for example ``velocity``.
        name: Name of the tensor.
        like: Tensor with the shape and dtype of the result.
        start: Value of all entries before the first round.
    """
    kept = server.state.tensors.get(f"{AUXILIARY_PREFIX}{what}/{name}")
    return torch.full_like(like, start) if kept is None else kept.to(like.dtype)


def store_moment(server: Server, what: str, name: str, value: torch.Tensor, like: torch.Tensor) -> None:
    """Store a moment of a tensor in the server's state, in the dtype of `like` but at least float32."""
    server.state.tensors[f"{AUXILIARY_PREFIX}{what}/{name}"] = value.to(torch.promote_types(like.dtype, torch.float32))
