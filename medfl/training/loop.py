"""The one local training loop, used by every method."""

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
from medfl.training.batches import load, on_device
from medfl.training.precision import autocast
from medfl.types import Dataset, Loaded

if TYPE_CHECKING:
    from medfl.training.augment import Augment


logger = logging.getLogger(__name__)


@dataclass
class Batch:
    """A batch on the training device.

    Attributes:
        images: (B, C, *spatial), float32.
        targets: (B, ...), as the task's objective says; a dictionary of such for bundles with more than one.
        rows: Which images of the training split these are, shape (B,), on the CPU; an image that was cut into patches
            is there several times.
        regions: Labels of the regions of each image, (B, *spatial), where the task has regions and changes images at
            random: the labels have moved with the images. None otherwise.
    """

    images: torch.Tensor
    targets: torch.Tensor
    rows: torch.Tensor
    regions: torch.Tensor | None = None


@dataclass
class TrainResult:
    """What a training did.

    Attributes:
        batches: Optimiser steps taken.
        samples: Images visited, repeats counted.
        loss: Mean loss over the visited images; nan if none.
        seconds: Wall-clock seconds.
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
    """Rows of each batch: a new permutation for each epoch, nothing dropped (rule G-6); or n weighted draws.

    Args:
        n: Rows of the data set; with 0 there is no batch.
        batch_size: Rows in a batch, >= 1; the last one of an epoch may have fewer.
        generator: The stream of the permutations.
        epochs: Passes over the data; ignored when `steps` is given.
        steps: Batches in all, or None.
        weights: How often each row is drawn, shape (n,); an epoch is then n draws with replacement. None: permutations.

    Yields:
        Index tensors of shape (B,).
    """
    done = 0
    epoch = 0
    while n > 0 and (epoch < epochs if steps is None else done < steps):
        order = torch.randperm(n, generator=generator) if weights is None else _draw(weights, n, generator)
        for rows in order.split(batch_size):
            if steps is not None and done == steps:
                return
            yield rows
            done += 1
        epoch += 1


def _draw(weights: torch.Tensor, n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.multinomial(weights, n, replacement=True, generator=generator)


def smallest_batch(model: nn.Module, settings: Settings) -> int:
    """Images that a batch needs: two if the model has batch-norm layers that are not frozen (rule G-6)."""
    return 2 if has_batch_norm(model) and settings.norm_sync != "frozen" else 1


class Steps(Protocol):
    """How a training draws its batches and takes its steps: plainly, or with noise (`medfl.privacy.samples`)."""

    @property
    def smallest(self) -> int:
        """Samples that a batch needs; one with fewer is left out."""
        ...

    def batches(self, n: int) -> Iterator[torch.Tensor]:
        """The rows of each batch out of n; a batch may be empty."""
        ...

    def step(self, loss: Callable[[Batch], torch.Tensor], batch: Batch | None) -> torch.Tensor:
        """Take a step on a batch, None for an empty one; its mean loss, without a gradient."""
        ...


class PlainSteps:
    """Steps by the gradient of each batch's loss.

    Args:
        model: In training mode. A batch of one sample is left out if it has batch-norm layers (rule G-6), unless they
            are frozen.
        optimizer: Over the parameters to train.
        settings: epochs or steps, batch_size, norm_sync.
        generator: The stream of the batches.
        weights: As in `row_batches`.
        gradient_clip: Largest L2 norm of a batch's gradient, or None.
        smallest: Cases that a batch needs to teach anything; smaller ones are left out.
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
        """Those of `row_batches`."""
        settings = self._settings
        return row_batches(n, settings.batch_size, self._generator, settings.epochs, settings.steps, self._weights)

    def step(self, loss: Callable[[Batch], torch.Tensor], batch: Batch | None) -> torch.Tensor:
        """Step by the gradient of the loss."""
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
    augment: Augment | None = None,
    steps: Steps | None = None,
    smallest: int = 1,
    before_epoch: Callable[[int], None] | None = None,
) -> TrainResult:
    """Train `model` in place for the epochs (or steps) of the settings.

    Args:
        model: On `device`.
        data: The training split; may be empty.
        loss: Maps a batch to the scalar to minimise; a method's own terms are in it.
        optimizer: Over the parameters to train.
        settings: epochs or steps, batch_size, norm_sync, balance, precision.
        generator: The stream of the batches.
        device: Where `model` is.
        weights: How often each image is drawn, shape (n,), as in `row_batches`; None leaves it to ``balance``.
        after_batch: Called after each optimiser step.
        gradient_clip: Largest L2 norm of a batch's gradient over all parameters jointly, > 0; None clips nothing.
        augment: Changes each batch's images at random (`Task.augment`); None leaves them as they are.
        steps: Draws the batches and takes the steps; None does so plainly, by `PlainSteps`.
        smallest: For `PlainSteps`: cases that a batch needs (`Objective.smallest_batch`).
        before_epoch: Called with the number of each epoch, from 1, before its first batch; an epoch is as many batches
            as the data set fills, also where `settings.steps` counts batches.

    Returns:
        Counts, mean loss and seconds.

    Raises:
        ContractError: If the run hides single images and the steps are the plain ones, which would not.
    """
    if steps is None and settings.privacy is not None:
        mechanism = look_up("privacy_mechanism", settings.privacy.unit, object)  # no policy: privacy is above
        if mechanism.noises_training:
            raise ContractError(
                "missing_private_steps",
                f"Expected private steps in a run with the privacy unit '{settings.privacy.unit}', got none: a plain "
                "training would break the run's promise. Train by `Averaging.fit`, or give `train` the `steps`.",
            )
    start = time.perf_counter()
    model.train()
    if settings.norm_sync == "frozen":
        freeze_norms(model)
    if weights is None and settings.balance == "sampling":
        weights = balanced_sampling(data)
    steps = steps or PlainSteps(model, optimizer, settings, generator, weights, gradient_clip, smallest)

    def priced(batch: Batch) -> torch.Tensor:
        with autocast(settings, device):
            return loss(batch)

    total, samples, batches = torch.zeros((), device=device), 0, 0
    in_epoch = max(1, math.ceil(len(data) / settings.batch_size))
    planned = in_epoch * settings.epochs if settings.steps is None else settings.steps
    for number, loaded in enumerate(load(data, steps.batches(len(data)), generator, total=planned)):
        if before_epoch is not None and number % in_epoch == 0:
            before_epoch(number // in_epoch + 1)
        count = len(loaded.rows)
        if count < steps.smallest:
            continue
        total += steps.step(priced, _batch(loaded, device, augment)).to(device) * count
        if after_batch is not None:
            after_batch()
        samples += count
        batches += 1
    mean = float(total) / samples if samples else float("nan")
    return TrainResult(batches, samples, mean, time.perf_counter() - start)


def balanced_sampling(data: Dataset) -> torch.Tensor:
    """How often each case is drawn, such that all classes that occur are drawn equally often; shape (n,), float64.

    Raises:
        SettingsError: If cases have no classes.
    """
    if data.class_labels is None:
        raise SettingsError(
            "missing_classes",
            "balance 'sampling' draws classes equally often, and these cases have none. Leave it out.",
            setting="balance",
        )
    return sampling_weights(data.class_labels)


def _batch(loaded: Loaded, device: str, augment: Augment | None) -> Batch | None:
    """A batch on the training device; None without rows."""
    if not len(loaded.rows):
        return None
    images, targets, regions = loaded.inputs, loaded.targets, None
    if augment is not None:
        images, targets, regions = augment(images, targets)
    moved = None if regions is None else regions.to(device)
    return Batch(images.to(device), on_device(targets, device), loaded.rows, moved)


def pick_device(device: str, workers: int = 1) -> str:
    """The device that a name means here; ``auto`` is the first GPU, or the CPU.

    Several workers compute on the CPU: they are forked, and CUDA works in no process that is forked after it was so
    much as asked for. So it is not asked for. A GPU is started at once, because `medfl.utils.rng` seeds what is
    started.

    Args:
        device: ``auto``, ``cpu`` or ``cuda:N``.
        workers: Processes that train sites; 1 is this process.

    Raises:
        SettingsError: If a GPU is asked for, and there is none or there are several workers.
    """
    if workers > 1:
        if device.startswith("cuda"):
            raise SettingsError(
                "incompatible_settings",
                f"device '{device}' and {workers} workers were asked for, but worker processes can't use a GPU; use "
                "--workers 1 to compute on it, or --device cpu to compute in several processes.",
                settings=["device", "workers"],
                device=device,
                workers=workers,
            )
        if device == "auto" and torch.backends.cuda.is_built():
            logger.info("%d workers compute on the CPU; a GPU would take --workers 1.", workers)
        return "cpu"
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise SettingsError(
            "missing_gpu",
            f"device '{device}' was asked for and torch sees no GPU here; use --device cpu or auto.",
            device=device,
        )
    torch.cuda.init()
    return "cuda:0" if device == "auto" else device
