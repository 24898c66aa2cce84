"""Task of an adopted bundle: the bundle's network, loss and optimizer for medfl's training loop.

An adopted bundle is a copy of a stock MONAI bundle to which ``medfl adopt`` added a configuration for federations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from monai.inferers import SimpleInferer
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from medfl.errors import SettingsError, check_choice
from medfl.objectives import Objective
from medfl.task import Task
from medfl.types import Meta
from medfl_adopt.bundle import AdoptedBundle
from medfl_adopt.objective import make_objective

NETWORK_NAME = "network"
"""Name under which the task lists the bundle's only network."""

SCHEDULES = ("per_round", "restart", "off")
"""Allowed values of the option ``schedule``: uses of a bundle's learning-rate schedule.

* ``per_round``: a step after each round.
* ``restart``: a step after each epoch; the schedule starts again in each training of a site.
* ``off``: no schedule.
"""


def adopted_objective(bundle: AdoptedBundle) -> Objective:
    """Return the learning objective of an adopted bundle.

    Raises:
        SettingsError: If the number of channels of the network's output is unknown.
    """
    fields = bundle.adopted["objective"]
    objective = make_objective(fields["name"], fields["overlapping"], fields["outputs"], fields["spacing"])
    if objective is None:
        raise SettingsError(
            "unknown_output_count",
            f"The number of channels of the network's output is unknown for '{bundle.root}': expected a number at "
            "'adopted#objective#outputs' of configs/federate.json. Write it there.",
            path=bundle.root,
        )
    return objective


def adopted_task(
    bundle: AdoptedBundle, objective: Objective, metrics: Sequence[str] = (), schedule: str = SCHEDULES[0]
) -> Task:
    """Return the task of an adopted bundle.

    Args:
        bundle: The bundle.
        objective: Objective of the bundle.
        metrics: Metrics of the objective to report in addition to the bundle's own; empty means the objective's
            defaults.
        schedule: ``per_round``: a step of the bundle's learning-rate schedule, if it has one, after each round.
            ``restart``: the schedule restarts in each training of a site, with a step after each epoch. ``off``:
            constant learning rate of the optimizer.

    Raises:
        SettingsError: If the bundle's code fails, or its training is not supported by medfl's loop.
    """
    check_choice("schedule", schedule, SCHEDULES)
    bundle.initialize()
    parts = bundle.parts()
    if parts.prepare_batch is not None and not _is_default(parts.prepare_batch):
        raise SettingsError(
            "unsupported_prepare_batch",
            "The bundle's trainer has its own 'prepare_batch': expected MONAI's, which uses the keys image and label. "
            "Prepare these keys in the transforms.",
        )
    if parts.train_inferer is not None and type(parts.train_inferer) is not SimpleInferer:
        raise SettingsError(
            "unsupported_inferer",
            f"The bundle trains with a {type(parts.train_inferer).__name__}: expected SimpleInferer, because a "
            "method's loss terms need the network itself. Cut patches in the training transforms.",
            expected="SimpleInferer",
            found=type(parts.train_inferer).__name__,
        )
    return Task(
        networks={NETWORK_NAME: parts.network},
        network=NETWORK_NAME,
        loss=_as_module(parts.loss),
        optimizer=parts.optimizer,
        objective=objective,
        metrics=tuple(metrics),
        inferer=parts.val_inferer,
        schedule=AdoptedSchedule(bundle, schedule == "restart")
        if bundle.ids["lr_schedule"] and schedule != "off"
        else None,
    )


def _as_module(loss: Callable[..., torch.Tensor]) -> nn.Module:
    """Return a loss unchanged if it is a module without tensors, else as an `AdoptedLoss`.

    The tensors of a loss must be on the device of its inputs.
    """
    if isinstance(loss, nn.Module) and not list(loss.parameters()) and not list(loss.buffers()):
        return loss
    return AdoptedLoss(loss)


def _is_default(prepare_batch: Callable[..., Any]) -> bool:
    """Return whether a function is MONAI's default for preparing a batch."""
    from monai.engines.utils import PrepareBatchDefault, default_prepare_batch

    return prepare_batch is default_prepare_batch or type(prepare_batch) is PrepareBatchDefault


class AdoptedLoss(nn.Module):
    """Loss of a bundle that has tensors or is a function; it moves itself to the device of its inputs.

    Args:
        loss: Loss of the bundle.

    Attributes:
        loss: Loss of the bundle.
    """

    def __init__(self, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch, a scalar."""
        if isinstance(self.loss, nn.Module):
            self.loss.to(outputs.device)
        return self.loss(outputs, targets)


class AdoptedSchedule:
    """Learning-rate schedule of a bundle, as a function that returns a factor of the optimizer's learning rate.

    Args:
        bundle: A bundle with a schedule.
        restarts: Whether the schedule counts the epochs of each training of a site instead of the rounds.

    Attributes:
        restarts: Whether the schedule counts the epochs of each training of a site instead of the rounds.
        facts: JSON values that identify the schedule; equal schedules have equal values.

    Raises:
        SettingsError: If the schedule depends on scores, or can't be built.
    """

    def __init__(self, bundle: AdoptedBundle, restarts: bool = False) -> None:
        self.restarts = restarts
        parser = bundle.parser()
        self._optimizer = bundle.build(parser, bundle.ids["optimizer"])
        rate = self._optimizer.param_groups[0]["lr"]
        self._scheduler = bundle.build(parser, bundle.ids["lr_schedule"])
        if isinstance(self._scheduler, ReduceLROnPlateau) or not isinstance(self._scheduler, LRScheduler):
            raise SettingsError(
                "unsupported_schedule",
                f"The bundle's learning-rate schedule is a {type(self._scheduler).__name__}: expected a schedule of "
                "torch that depends on time only. Disable it with --schedule off.",
                found=type(self._scheduler).__name__,
            )
        self._rate, self._factors = rate, [self._current_factor(rate)]
        state = {key: value for key, value in self._scheduler.state_dict().items() if not key.startswith("_")}
        self.facts: Meta = {"kind": type(self._scheduler).__name__, "state": repr(sorted(state.items()))}
        self.facts |= {"per": "epoch"} if restarts else {}

    def __call__(self, number: int) -> float:
        """Return the factor, >= 0.

        Args:
            number: Number of the round, or of the epoch if the schedule `restarts`; both are counted from 1.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this optimizer trains nothing
            while len(self._factors) < number:
                self._scheduler.step()
                self._factors.append(self._current_factor(self._rate))
        return self._factors[max(number, 1) - 1]

    def _current_factor(self, rate: float) -> float:
        """Return the scheduler's current factor."""
        return float(self._optimizer.param_groups[0]["lr"]) / rate
