"""The task of an adopted bundle: its network, loss and optimiser as medfl's one loop takes them."""

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

NETWORK = "network"
"""The name of the one network that a bundle has."""

SCHEDULES = ("per_round", "restart", "off")
"""What is made of a bundle's schedule of the learning rate."""


def adopted_objective(bundle: AdoptedBundle) -> Objective:
    """What an adopted bundle learns.

    Raises:
        SettingsError: If nobody knows how many channels its network puts out.
    """
    facts = bundle.adopted["objective"]
    objective = make_objective(facts["name"], facts["overlapping"], facts["outputs"], facts["spacing"])
    if objective is None:
        raise SettingsError(
            "unknown_output_count",
            f"the channels of the network's output can't be told from '{bundle.root}': expected a number at "
            "'adopted#objective#outputs' of configs/federate.json. Write it there.",
            path=bundle.root,
        )
    return objective


def adopted_task(
    bundle: AdoptedBundle, objective: Objective, metrics: Sequence[str] = (), schedule: str = SCHEDULES[0]
) -> Task:
    """The task of an adopted bundle.

    Args:
        bundle: The bundle.
        objective: What it learns.
        metrics: The objective's metrics to report beside the bundle's own; empty takes the objective's.
        schedule: ``per_round`` takes a step of the bundle's learning-rate schedule, if it has one, after each round;
            ``restart`` begins it anew in each round, at each site and in each training, and takes a step after each
            epoch; ``off`` leaves the rate as the optimiser has it.

    Raises:
        SettingsError: If the bundle's code fails, or it trains in a way that medfl's loop has no place for.
    """
    check_choice("schedule", schedule, SCHEDULES)
    bundle.initialize()
    parts = bundle.parts()
    if parts.prepare_batch is not None and not _is_default(parts.prepare_batch):
        raise SettingsError(
            "unsupported_prepare_batch",
            "the bundle's trainer has a 'prepare_batch' of its own: expected MONAI's, which takes the keys image and "
            "label. Do its work in the transforms, under these keys.",
        )
    if parts.train_inferer is not None and type(parts.train_inferer) is not SimpleInferer:
        raise SettingsError(
            "unsupported_inferer",
            f"the bundle trains through a {type(parts.train_inferer).__name__}: expected SimpleInferer, for a method's "
            "own terms need the network itself. Cut patches in the training transforms.",
            expected="SimpleInferer",
            found=type(parts.train_inferer).__name__,
        )
    return Task(
        networks={NETWORK: parts.network},
        network=NETWORK,
        loss=_as_module(parts.loss),
        optimizer=parts.optimizer,
        objective=objective,
        metrics=tuple(metrics),
        inferer=parts.val_inferer,
        schedule=Schedule(bundle, schedule == "restart") if bundle.ids["lr_schedule"] and schedule != "off" else None,
    )


def _as_module(loss: Callable[..., torch.Tensor]) -> nn.Module:
    """A loss as it is, if it is a module without tensors of its own, which would have to be where its inputs are."""
    if isinstance(loss, nn.Module) and not list(loss.parameters()) and not list(loss.buffers()):
        return loss
    return AdoptedLoss(loss)


def _is_default(prepare_batch: Callable[..., Any]) -> bool:
    from monai.engines.utils import PrepareBatchDefault, default_prepare_batch

    return prepare_batch is default_prepare_batch or type(prepare_batch) is PrepareBatchDefault


class AdoptedLoss(nn.Module):
    """A bundle's loss with tensors of its own, or a function; on the device of what it compares.

    Args:
        loss: The bundle's.
    """

    def __init__(self, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of a batch, a scalar."""
        if isinstance(self.loss, nn.Module):
            self.loss.to(outputs.device)
        return self.loss(outputs, targets)


class Schedule:
    """The learning rate as a share of the optimiser's: the bundle's schedule, a step after each round or epoch.

    Args:
        bundle: With a schedule.
        restarts: Whether it counts the epochs of each training, and not rounds (`medfl.task.Schedule`).

    Raises:
        SettingsError: If it goes by scores, or can't be built.
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
                f"the bundle's learning-rate schedule is a {type(self._scheduler).__name__}: expected one of torch's "
                "that goes by time alone. Leave it out with --schedule off.",
                found=type(self._scheduler).__name__,
            )
        self._rate, self._shares = rate, [self._now(rate)]
        state = {key: value for key, value in self._scheduler.state_dict().items() if not key.startswith("_")}
        self.facts: Meta = {"kind": type(self._scheduler).__name__, "state": repr(sorted(state.items()))}
        self.facts |= {"per": "epoch"} if restarts else {}

    def __call__(self, number: int) -> float:
        """The share in a round or epoch, counted from 1; >= 0."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing is trained with this optimiser
            while len(self._shares) < number:
                self._scheduler.step()
                self._shares.append(self._now(self._rate))
        return self._shares[max(number, 1) - 1]

    def _now(self, rate: float) -> float:
        return float(self._optimizer.param_groups[0]["lr"]) / rate
