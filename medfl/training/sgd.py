"""Distance that plain SGD covers in a training, and the check that a task uses plain SGD.

From this distance, some methods derive the mean gradient of a training or the amount of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from medfl.errors import SettingsError


def check_sgd(optimizer: torch.optim.Optimizer, why: str) -> None:
    """Raise if an optimiser is not plain SGD, for which `distance_in_learning_rates` holds.

    Args:
        optimizer: The task's optimiser.
        why: Reason why the method needs the step length, for the message.

    Raises:
        SettingsError: If the optimiser is not SGD, or uses Nesterov momentum, dampening or maximization.
    """
    unlike = {
        key for group in optimizer.param_groups for key in ("nesterov", "dampening", "maximize") if group.get(key)
    }
    if type(optimizer) is not torch.optim.SGD or unlike:
        name = " with ".join([type(optimizer).__name__, *sorted(unlike)])
        raise SettingsError(
            "unsupported_optimizer",
            f"{why}, got {name}. Choose torch.optim.SGD, with or without plain momentum, or the method 'fedavg'.",
            optimizer=type(optimizer).__name__,
            options=unlike,
        )


def distance_in_learning_rates(group: Mapping[str, Any], steps: int, mu: float = 0.0) -> float:
    """Compute the distance that SGD covers along a constant gradient of -1, divided by the learning rate.

    The distance D and the velocity v start at 0. With learning rate lr and momentum beta, each step sets v to
    beta v + 1 - lr mu D, and then adds v to D. The term lr mu D is the pull of the proximal term (mu/2) w^2, where
    w = lr D is the parameter's distance from its initial value. Without momentum and with mu = 0, D equals `steps`.

    Args:
        group: Parameter group of the optimiser with ``lr`` and ``momentum``.
        steps: Number of steps, >= 0.
        mu: Weight of the proximal term, >= 0.
    """
    beta, pull = group["momentum"], group["lr"] * mu
    if not pull:
        return steps if not beta else (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)
    speed, distance = 0.0, 0.0
    for _ in range(steps):
        speed = beta * speed + 1 - pull * distance
        distance += speed
    return distance
