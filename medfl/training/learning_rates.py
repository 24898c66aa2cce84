"""Learning rates over a run: a factor of the optimiser's learning rate per round, per epoch or per step.

A round, an epoch and a step are known from their number, so a run that was killed continues with the same learning
rates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import torch
from torch import nn

from medfl.errors import SettingsError
from medfl.settings import Optimization
from medfl.types import Meta


class Schedule(Protocol):
    """Learning-rate schedule: a factor of the optimiser's learning rate per round, or per epoch within each round.

    Attributes:
        restarts: Whether the schedule counts the epochs of each training instead of the rounds.
        facts: JSON description of the schedule for the identity of a run; equal schedules have equal JSON.
    """

    restarts: bool
    facts: Meta

    def __call__(self, number: int) -> float:
        """Return the factor, >= 0, in a round or, if the schedule `restarts`, in an epoch; both are counted from 1."""
        ...


class LearningRates:
    """Learning rates of the optimisers of one training, which a factor scales from time to time.

    The rates that a factor of 1 stands for are those of the optimiser at the first call of `scale`. A method can
    therefore change them after it has created the optimiser.
    """

    def __init__(self) -> None:
        self._optimizers: list[torch.optim.Optimizer] = []
        self._base_rates: list[list[float]] = []

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Register an optimiser, whose learning rates `scale` then sets."""
        self._optimizers.append(optimizer)

    def scale(self, factor: float) -> None:
        """Set the learning rates of all registered optimisers to the factor times their first learning rates."""
        for optimizer in self._optimizers[len(self._base_rates) :]:
            self._base_rates.append([float(group["lr"]) for group in optimizer.param_groups])
        for optimizer, rates in zip(self._optimizers, self._base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor


class EpochRates(LearningRates):
    """Callback that sets the learning rates at the start of each epoch, for a schedule that restarts in each training.

    Args:
        schedule: Learning-rate schedule whose `restarts` is true.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def __call__(self, epoch: int) -> None:
        """Set the learning rates of all registered optimisers for an epoch, counted from 1."""
        self.scale(self._schedule(epoch))


class StepRates(LearningRates):
    """Callback that sets the learning rates before each step, for a schedule over the whole run.

    Each training of a round covers the round's part of the schedule. If a training has K batches, its batch k, counted
    from 0, is step (round - 1) K + k of rounds x K steps. Sites with different numbers of batches therefore have the
    same learning rates at the start of a round.

    Args:
        optimization: Settings of the schedule.
        round_: Number of the round, from 1.
        rounds: Number of rounds of the run.
    """

    def __init__(self, optimization: Optimization, round_: int, rounds: int) -> None:
        super().__init__()
        self._optimization, self._round, self._rounds = optimization, round_, rounds

    def __call__(self, batch: int, batches: int) -> None:
        """Set the learning rates of all registered optimisers for a batch.

        Args:
            batch: Number of the batch in the training, from 0.
            batches: Number of batches of the training, >= 1.

        Raises:
            SettingsError: If the round is after the last round of a cosine.
        """
        cosine = self._optimization.schedule == "cosine"
        if cosine and self._round > self._rounds:
            raise SettingsError(
                "round_after_schedule",
                f"The cosine schedule ends with round {self._rounds}, but a site was asked to train in round "
                f"{self._round}. Set 'rounds' to the number of rounds of the whole run.",
                setting="rounds",
                expected=self._rounds,
                found=self._round,
            )
        factor = warmup_and_decay(self._optimization.warmup_rounds * batches, self._rounds * batches, cosine)
        self.scale(factor((self._round - 1) * batches + batch))


@lru_cache(maxsize=64)
def warmup_and_decay(warmup: int, total: int, cosine: bool) -> Callable[[int], float]:
    """Return the factor of the learning rate as a function of the step, counted from 0.

    The factor is the one of MONAI's `WarmupCosineSchedule`: it rises linearly from 1 / `warmup` to 1 in the steps of
    the warm-up, and then falls to 0 along half a cosine, or stays 1. It equals torch's `LinearLR` followed by
    `CosineAnnealingLR`. The first factor is not 0, so that the first step is not lost.

    Args:
        warmup: Number of steps of the warm-up, >= 0.
        total: Number of steps, with the warm-up.
        cosine: Whether the factor falls after the warm-up.
    """
    from monai.optimizers import WarmupCosineSchedule

    unused = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = WarmupCosineSchedule(
        unused,
        warmup_steps=warmup,
        t_total=max(total, warmup),
        cycles=0.5 if cosine else 0.0,
        warmup_multiplier=1 / max(warmup, 1),
    )
    factor: Callable[[int], float] = schedule.lr_lambda
    return factor
