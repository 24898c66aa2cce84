"""Training loop of a site, which every method uses.

B is the number of samples of a batch, C the number of image channels. A row is the number of a case in its data set.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from medfl.errors import ContractError, SettingsError
from medfl.networks.norms import freeze_norms, has_batch_norm
from medfl.objectives.balance import sampling_weights
from medfl.plugins import look_up
from medfl.settings import Settings
from medfl.training.batches import load_batches, on_device
from medfl.training.checkpoints import TrainingCheckpoint, TrainingPosition
from medfl.training.precision import autocast
from medfl.types import Dataset, LoadedBatch

if TYPE_CHECKING:
    from medfl.training.augment import AugmentFunction


logger = logging.getLogger(__name__)
"""Logger of this module."""


@dataclass
class Batch:
    """A batch on the training device.

    Attributes:
        images: Images (B, C, *spatial), float32.
        targets: Targets (B, ...) in the form of the task's objective; a dictionary for bundles with several targets.
        rows: Row numbers of the images in the training split, shape (B,), on the CPU. An image that is cut into patches
            occurs several times.
        regions: Region labels of each image, (B, *spatial), transformed with the image, if the task has regions and
            augmentation; None otherwise.
    """

    images: torch.Tensor
    targets: torch.Tensor
    rows: torch.Tensor
    regions: torch.Tensor | None = None


@dataclass
class TrainResult:
    """Result of a training.

    Attributes:
        batches: Number of optimiser steps.
        samples: Number of visited images, with repetitions.
        loss: Mean loss over the visited images; NaN if there are none.
        seconds: Duration in seconds.
    """

    batches: int
    samples: int
    loss: float
    seconds: float


def row_batches(
    n: int,
    batch_size: int,
    generator: torch.Generator,
    epochs: int,
    steps: int | None = None,
    weights: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """Yield the row numbers of each batch.

    Each epoch is a new permutation of all rows, without dropping the last batch, or n draws with weights.

    Args:
        n: Number of rows of the data set; with 0 there is no batch.
        batch_size: Number of rows in a batch, >= 1; the last batch of an epoch may be smaller.
        generator: Random generator of the permutations or draws.
        epochs: Number of passes over the data; ignored if `steps` is set.
        steps: Total number of batches, or None.
        weights: Sampling weights of the rows, shape (n,), for n draws with replacement per epoch; None uses
            permutations.

    Yields:
        Row numbers of shape (B,).
    """
    done = 0
    epoch = 0
    while n > 0 and (epoch < epochs if steps is None else done < steps):
        order = torch.randperm(n, generator=generator) if weights is None else _draw_rows(weights, n, generator)
        for rows in order.split(batch_size):
            if steps is not None and done == steps:
                return
            yield rows
            done += 1
        epoch += 1


def _draw_rows(weights: torch.Tensor, n: int, generator: torch.Generator) -> torch.Tensor:
    """Draw n rows with replacement."""
    return torch.multinomial(weights, n, replacement=True, generator=generator)


def smallest_batch(model: nn.Module, settings: Settings) -> int:
    """Return the minimum number of images in a batch: 2 if batch-norm layers are trained, otherwise 1."""
    return 2 if has_batch_norm(model) and settings.norm_sync != "frozen" else 1


class StepStrategy(Protocol):
    """Strategy that draws a training's batches and takes its steps, plainly or as DP-SGD (`medfl.privacy.samples`)."""

    @property
    def smallest(self) -> int:
        """Minimum number of samples in a batch; a smaller batch is skipped."""
        ...

    def batches(self, n: int) -> Iterator[torch.Tensor]:
        """Yield the row numbers of each batch for a data set of n rows; a batch may be empty."""
        ...

    def step(self, loss: Callable[[Batch], torch.Tensor], batch: Batch | None) -> torch.Tensor:
        """Take an optimiser step on a batch (None if it is empty), and return its mean loss without a gradient."""
        ...


class PlainSteps:
    """Optimiser steps with the gradient of each batch's loss, as in non-private training.

    Args:
        model: Model in training mode. If it has batch-norm layers that are not frozen, batches of one sample are
            skipped.
        optimizer: Optimiser of the trained parameters.
        settings: Settings of the run: epochs or steps, batch_size, norm_sync.
        generator: Random generator of the batches.
        weights: Sampling weights of the rows, shape (n,), for draws with replacement; None uses permutations.
        gradient_clip: Maximum L2 norm of a batch's gradient, or None.
        smallest: Minimum number of cases in a batch that the loss needs; smaller batches are skipped.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        generator: torch.Generator,
        weights: torch.Tensor | None = None,
        gradient_clip: float | None = None,
        smallest: int = 1,
    ) -> None:
        self._optimizer, self._settings, self._generator = optimizer, settings, generator
        self._weights, self._gradient_clip = weights, gradient_clip
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.smallest = max(smallest, smallest_batch(model, settings))

    def batches(self, n: int) -> Iterator[torch.Tensor]:
        """Yield the row numbers of each batch for a data set of n rows, drawn by `row_batches`."""
        settings = self._settings
        return row_batches(n, settings.batch_size, self._generator, settings.epochs, settings.steps, self._weights)

    def step(self, loss: Callable[[Batch], torch.Tensor], batch: Batch | None) -> torch.Tensor:
        """Take an optimiser step with the gradient of the batch's loss, and return the loss."""
        assert batch is not None
        self._optimizer.zero_grad(set_to_none=True)
        value = loss(batch)
        value.backward()
        if self._gradient_clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._gradient_clip)
        self._optimizer.step()
        return value.detach()


def train(
    model: nn.Module,
    data: Dataset,
    loss: Callable[[Batch], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    settings: Settings,
    generator: torch.Generator,
    device: str = "cpu",
    weights: torch.Tensor | None = None,
    after_batch: Callable[[], None] | None = None,
    gradient_clip: float | None = None,
    augment: AugmentFunction | None = None,
    steps: StepStrategy | None = None,
    smallest: int = 1,
    before_epoch: Callable[[int], None] | None = None,
    before_batch: Callable[[int, int], None] | None = None,
    checkpoint: TrainingCheckpoint | None = None,
) -> TrainResult:
    """Train `model` in place for the number of epochs (or steps) in the settings.

    Args:
        model: Model on `device`.
        data: Training split; may be empty.
        loss: Function that maps a batch to the scalar loss, including the method's own terms.
        optimizer: Optimiser of the trained parameters.
        settings: Settings of the run: epochs or steps, batch_size, norm_sync, balance, precision, privacy.
        generator: Random generator of the batches.
        device: Device of `model`.
        weights: Sampling weights of the images, shape (n,), for draws with replacement; None uses the setting
            ``balance``.
        after_batch: Callback after each optimiser step.
        gradient_clip: Maximum L2 norm of a batch's gradient over all parameters jointly, > 0; None disables clipping.
        augment: Function that augments each batch (`Task.augment`); None leaves images unchanged.
        steps: Strategy that draws the batches and takes the steps; None uses `PlainSteps`.
        smallest: Minimum number of cases in a batch (`Objective.smallest_batch`), for `PlainSteps`.
        before_epoch: Callback before the first batch of each epoch, with the epoch's number from 1. An epoch is the
            number of batches that the data set fills, also if `settings.steps` counts batches.
        before_batch: Callback before each batch, with the batch's number from 0 and the number of batches of the
            training. Batches that are skipped count.
        checkpoint: Checkpoint that is written at intervals, and from whose position the training continues; it has
            loaded the state of model, optimiser and generators (`TrainingCheckpoint.begin`). None writes none.

    Returns:
        Numbers of steps and images, mean loss, and duration.

    Raises:
        ContractError: If the run has the privacy unit ``sample`` and `steps` is None: plain steps are not private.
    """
    # 1. Refuse plain steps in a run that promises private training.
    if steps is None:
        _check_plain_steps_are_allowed(settings)
    start = time.perf_counter()

    # 2. Prepare the model: training mode, with batch norm frozen if the settings say so.
    model.train()
    if settings.norm_sync == "frozen":
        freeze_norms(model)

    # 3. Choose how batches are drawn and steps are taken.
    if weights is None and settings.balance == "sampling":
        weights = balanced_sampling(data)
    steps = steps or PlainSteps(model, optimizer, settings, generator, weights, gradient_clip, smallest)

    def loss_in_run_precision(batch: Batch) -> torch.Tensor:
        with autocast(settings, device):
            return loss(batch)

    # 4. For each batch: load and augment it, compute its loss, and take an optimiser step.
    done = TrainingPosition() if checkpoint is None else checkpoint.position
    total_loss = torch.zeros((), device=device) if checkpoint is None else checkpoint.total_loss.to(device)
    samples, batches = done.samples, done.steps
    batches_per_epoch = max(1, math.ceil(len(data) / settings.batch_size))
    planned = batches_per_epoch * settings.epochs if settings.steps is None else settings.steps
    loading = load_batches(data, steps.batches(len(data)), generator, total=planned, skip=done.number)
    for number, loaded in enumerate(loading, done.number):
        if before_epoch is not None and (number % batches_per_epoch == 0 or number == done.number):
            before_epoch(number // batches_per_epoch + 1)
        if before_batch is not None:
            before_batch(number, planned)
        count = len(loaded.rows)
        if count < steps.smallest:
            continue
        total_loss += steps.step(loss_in_run_precision, _to_batch(loaded, device, augment)).to(device) * count
        if after_batch is not None:
            after_batch()
        samples += count
        batches += 1
        if checkpoint is not None:
            done = TrainingPosition(number + 1, batches, samples)
            checkpoint.save_if_due(done, total_loss)
    if checkpoint is not None:
        checkpoint.end(done, total_loss)

    # 5. Report the mean loss over all images.
    mean_loss = float(total_loss) / samples if samples else float("nan")
    return TrainResult(batches, samples, mean_loss, time.perf_counter() - start)


def _check_plain_steps_are_allowed(settings: Settings) -> None:
    """Raise if the run's privacy mechanism adds noise in the training, which plain steps don't."""
    if settings.privacy is None:
        return
    # This module may not import `medfl.privacy`, so the mechanism's class is looked up by name.
    mechanism = look_up("privacy_mechanism", settings.privacy.unit, object)
    if mechanism.noises_training:
        raise ContractError(
            "missing_private_steps",
            f"Expected private steps in a run with the privacy unit '{settings.privacy.unit}', got none: plain "
            "training would break the run's privacy guarantee. Train with `Averaging.fit`, or pass `steps` to `train`.",
        )


def balanced_sampling(data: Dataset) -> torch.Tensor:
    """Return sampling weights with which all occurring classes are drawn equally often; shape (n,), float64.

    Raises:
        SettingsError: If cases have no classes.
    """
    if data.class_labels is None:
        raise SettingsError(
            "missing_classes",
            "balance 'sampling' draws all classes equally often, but these cases have no classes. Leave 'balance' out.",
            setting="balance",
        )
    return sampling_weights(data.class_labels)


def _to_batch(loaded: LoadedBatch, device: str, augment: AugmentFunction | None) -> Batch | None:
    """Augment a loaded batch and move it to the device; return None for an empty batch."""
    if not len(loaded.rows):
        return None
    images, targets, regions = loaded.inputs, loaded.targets, None
    if augment is not None:
        images, targets, regions = augment(images, targets)
    moved = None if regions is None else regions.to(device)
    return Batch(images.to(device), on_device(targets, device), loaded.rows, moved)
