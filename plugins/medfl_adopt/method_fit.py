"""Find the methods that a run over an adopted bundle would refuse, using only the bundle's text.

An adopted bundle is a copy of a stock MONAI bundle to which ``medfl adopt`` added a configuration for federations.

The checks are the same as at the start of a run. No code of the bundle is run: a small placeholder network has
everything that methods ask of a network, and the optimizer is torch's or MONAI's own.
"""

from __future__ import annotations

import inspect
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from monai import optimizers
from torch import nn

from medfl.contract import Server, State
from medfl.engine.checks import check_plan
from medfl.engine.store import Store
from medfl.errors import MedflError
from medfl.hooks import MethodRecord
from medfl.objectives import Objective
from medfl.plugins import Registry
from medfl.settings import Settings
from medfl.task import ImageScale, OptimizerFactory, Task
from medfl.types import SERVER
from medfl.utils.rng import seeded_generators
from medfl_adopt.adoption import Adoption
from medfl_adopt.config import BundleConfig, base_name

EXAMPLE_SITES = ["site-1", "site-2"]
"""Names of the sites with which the methods are checked, as a check needs sites."""


class PlaceholderNetwork(nn.Module):
    """Small network that takes the place of the bundle's network in the checks of methods.

    It takes images of one pixel and one channel, and has everything that methods ask of a network.

    Args:
        outputs: Number of outputs.

    Attributes:
        body: All layers before the head.
        head: Linear last layer.
        feature_layers: The two stages of the body, for methods that compare stages.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        width = max(outputs, 4)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(1, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Linear(width, outputs)
        self.feature_layers = [self.body[1], self.body[3]]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the outputs, of shape (batch size, outputs), for images of shape (batch size, 1, 1, 1)."""
        outputs: torch.Tensor = self.head(self.body(images))
        return outputs


@dataclass(frozen=True)
class MethodFit:
    """Result of checking a method against an adopted bundle.

    Attributes:
        record: Record of the method, with its name and needs.
        refusal: Reason why a run refuses the method for any network, or None if no check fails.
    """

    record: MethodRecord
    refusal: str | None


def check_methods(adoption: Adoption, config: BundleConfig, registry: Registry) -> list[MethodFit]:
    """Return the result of the check for each installed method, sorted by name.

    Args:
        adoption: Record of the adopted bundle.
        config: Training configuration of the bundle.
        registry: Registry with the installed methods.
    """
    reasons = find_refusals(adoption, config, registry)
    return [MethodFit(registry.methods[name], reasons.get(name)) for name in sorted(registry.methods)]


def find_refusals(adoption: Adoption, config: BundleConfig, registry: Registry) -> dict[str, str]:
    """Return the methods that a run refuses for any network: a mapping from a method's name to the reason.

    Args:
        adoption: Record of the adopted bundle.
        config: Training configuration of the bundle.
        registry: Registry with the installed methods.
    """
    objective, optimizer = adoption.objective.build(), known_optimizer(config, adoption.parts.optimizer)
    if objective is None:
        return {}
    task = _task(objective, optimizer or _sgd)
    logger = logging.getLogger("medfl")
    level = logger.level
    logger.setLevel(logging.ERROR)  # hide warnings about runs that are never started
    try:
        reasons = {name: _refusal(registry, name, task, optimizer is not None) for name in sorted(registry.methods)}
    finally:
        logger.setLevel(level)
    return {name: reason for name, reason in reasons.items() if reason is not None}


def known_optimizer(config: BundleConfig, id_: str) -> OptimizerFactory | None:
    """Return a function that builds the bundle's optimizer, with the options that are written as plain values.

    Return None if the optimizer is not one of torch's or MONAI's, or if an option is an expression.
    """
    target, written = config.target(id_), config.value(id_)
    kinds: dict[str, Any] = {**vars(optimizers), **vars(torch.optim)}
    kind = kinds.get(base_name(target))
    is_known = "." not in target or target.startswith(("torch.optim", "monai.optimizers"))
    if not (is_known and isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        return None
    accepted = inspect.signature(kind.__init__).parameters
    options = {name: config.literal(f"{config.follow(id_)}#{name}") for name in written if name in accepted}
    plain: dict[str, Any] = {
        name: value for name, value in options.items() if isinstance(value, bool | int | float | list)
    }
    plain.pop("params", None)

    def build(parameters: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = kind(parameters, **plain)
        return optimizer

    try:
        build([nn.Parameter(torch.zeros(1))])
    except (TypeError, ValueError):  # an option is an expression
        return None
    return build


def _task(objective: Objective, optimizer: OptimizerFactory) -> Task:
    """Return a task with the placeholder network."""
    build: Callable[[], nn.Module] = lambda: PlaceholderNetwork(objective.outputs)  # noqa: E731
    return Task({"network": build}, "network", objective.default_loss(), optimizer, objective, scale=ImageScale(()))


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return an SGD optimizer."""
    return torch.optim.SGD(parameters, lr=0.1)


def _refusal(registry: Registry, name: str, task: Task, knows_optimizer: bool) -> str | None:
    """Return the message of the first check that refuses a method with its default settings, or None."""
    settings = Settings(rounds=1)
    try:
        method = registry.make_method(name, {})
        check_plan(name, method, task, settings, EXAMPLE_SITES, has_public=False)
        if knows_optimizer:
            own = method.task_of(task)
            with tempfile.TemporaryDirectory() as folder, seeded_generators(0, SERVER, 0, "global"):
                store = Store(Path(folder))
                method.setup(Server(SERVER, 0, State(), own, settings, store, EXAMPLE_SITES, {}, 0))
    except MedflError as error:
        return str(error)
    return None
