"""How far plain SGD goes: some methods read from it what a site's gradients were, or how much it trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from medfl.errors import SettingsError


def check_sgd(optimizer: torch.optim.Optimizer, why: str) -> None:
    """Refuse an optimiser whose steps along a constant gradient have no known length.

    Args:
        optimizer: As the task makes it.
        why: Who wants to know the length and for what, for the message.

    Raises:
        SettingsError: If it is not SGD, or has Nesterov's momentum or dampening.
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


def way(group: Mapping[str, Any], steps: int, mu: float = 0.0) -> float:
    """How far SGD goes in so many steps along a constant gradient of -1, in units of its learning rate.

    With a proximal term (mu/2) w^2 in the loss it is the D of so many turns of v <- beta v + 1 - lr mu D, D <- D + v.

    Args:
        group: Of the optimiser: ``lr`` and ``momentum``.
        steps: >= 0.
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
