"""Checkpoints of long trainings: a site that is killed within a step continues it with the same bits.

A checkpoint contains the models, the optimisers' state, the position in the training, and the state of all random
generators. It is written at intervals, stays on the site's disk, and is deleted when the site has saved the step.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from medfl.errors import DamagedError
from medfl.training.optimizer_state import read_state, write_state
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.files import write_atomic

logger = logging.getLogger(__name__)

CHECKPOINT_STEM = "training"
"""Start of the names of checkpoint files in the folder of a site's state."""

_PART, _LOSS, _RANDOM = "part/", "loss", "random/"
"""Names and prefixes of the tensors in a checkpoint."""

_MODEL, _OPTIMIZER = "model/", "optimizer/"
"""Prefixes of the tensors in the state of a `ModelPart`."""


@dataclass(frozen=True)
class TrainingPosition:
    """Position in a training.

    Attributes:
        number: Number of batches that were read, with skipped ones.
        steps: Number of optimiser steps.
        samples: Number of visited images.
    """

    number: int = 0
    steps: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        """Raise `ValueError` if no training can be at this position."""
        if {type(self.number), type(self.steps), type(self.samples)} != {int}:
            raise ValueError("the position does not consist of integers")
        if not 0 <= self.steps <= self.number or self.samples < 0:
            raise ValueError("the position is out of range")


class TrainingPart(Protocol):
    """Object that a training changes, such as its model with the optimiser, or a second model."""

    def training_state(self) -> Tensors:
        """Return the object's state as named tensors."""
        ...

    def load_training_state(self, state: Tensors) -> None:
        """Set the object to a state from `training_state`, in place."""
        ...


class ModelPart:
    """A model of a training with its optimiser; implements `TrainingPart`.

    Args:
        model: The model.
        optimizer: Its optimiser, with parameters of the model only.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def training_state(self) -> Tensors:
        """Return the tensors of the model and of the optimiser's state."""
        own = wire.prefixed(dict(self._model.state_dict()), _MODEL)
        return own | wire.prefixed(read_state(self._optimizer, self._model), _OPTIMIZER)

    def load_training_state(self, state: Tensors) -> None:
        """Load the tensors of the model and of the optimiser's state, in place."""
        self._model.load_state_dict(wire.select(state, _MODEL))
        self._optimizer.state.clear()
        write_state(self._optimizer, self._model, wire.select(state, _OPTIMIZER))


class StepCheckpoints:
    """Checkpoints of the trainings in one step of a site.

    After a kill at any moment, at most `seconds` of training are repeated, and one batch. Earlier trainings of the step
    may have ended after their last checkpoint; their unsaved seconds are subtracted from the interval of the next
    training.

    Args:
        folder: Folder of the site's state.
        step: Number of the step.
        request: Digest of the request that the step executes. Requests of several steps may be equal.
        seconds: Maximum seconds of unsaved training in the step, >= 0.

    Attributes:
        seconds: Maximum seconds of unsaved training in the step.
        unsaved: Seconds of the step's ended trainings that no checkpoint contains, less than half of `seconds`.
    """

    def __init__(self, folder: Path, step: int, request: str, seconds: float) -> None:
        self._folder, self._step, self._request = folder, step, request
        self._count = 0
        self.seconds, self.unsaved = seconds, 0.0

    def next_training(self) -> TrainingCheckpoint:
        """Return the checkpoint of the step's next training. Trainings are numbered in the order of the calls."""
        self._count += 1
        key = {"step": self._step, "request": self._request, "training": self._count}
        path = self._folder / f"{CHECKPOINT_STEM}-{self._count}.safetensors"
        return TrainingCheckpoint(path, key, self)


def delete_checkpoints(folder: Path) -> None:
    """Delete the files of all checkpoints in the folder of a site's state."""
    for path in folder.glob(f"{CHECKPOINT_STEM}-*.safetensors"):
        path.unlink(missing_ok=True)


class TrainingCheckpoint:
    """Checkpoint of one training.

    Args:
        path: File of the checkpoint.
        key: Identity of the training. The checkpoint of another training is ignored.
        step: Checkpoints of the step. The training's unsaved seconds are added at its end.

    Attributes:
        position: Position of the newest checkpoint, from which the training continues.
        total_loss: Sum of the losses of all images until then, shape (), on the CPU.
    """

    def __init__(self, path: Path, key: Meta, step: StepCheckpoints) -> None:
        self.position, self.total_loss = TrainingPosition(), torch.zeros(())
        self._path, self._key, self._step = path, key, step
        self._written = time.monotonic()
        self._parts: Mapping[str, TrainingPart] = {}
        self._generators: Mapping[str, torch.Generator] = {}
        self._log: dict[str, float] = {}

    def begin(
        self,
        parts: Mapping[str, TrainingPart],
        generators: Mapping[str, torch.Generator],
        log: dict[str, float] | None = None,
    ) -> None:
        """Load the state of a killed training in place, if there is one, and follow the objects from now on.

        Without a checkpoint of this training the training starts at the beginning; also, with a warning, if the file
        is damaged or does not fit the objects. Call this directly before the first batch, as the state includes that
        of the global random generators.

        Args:
            parts: Everything that the training changes, by name: the model with its optimiser, and further objects.
            generators: Random generators of the training by name, besides the global ones.
            log: Values that the training has logged so far; None logs none.
        """
        self._parts, self._generators, self._log = parts, generators, {} if log is None else log
        try:
            tensors, meta = wire.decode(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, DamagedError) as error:
            logger.warning("'%s' can't be read (%s). The training starts at the beginning.", self._path, error)
            return
        if meta.get("key") != self._key:
            return
        before = {name: _copies(part.training_state()) for name, part in parts.items()}
        random_before = _random_state(generators)
        try:
            self._load(tensors, meta)
        except Exception as error:  # any, as a part may be of a method's own class
            for name, part in parts.items():
                part.load_training_state(before[name])
            _restore_random_state(*random_before, generators)
            logger.warning(
                "'%s' does not fit its training (%s). The training starts at the beginning.",
                self._path,
                type(error).__name__,
            )
            return
        logger.info("A training continues after batch %d.", self.position.number)

    def _load(self, tensors: Tensors, meta: Meta) -> None:
        """Set the objects and the position to a checkpoint, in place. May raise after some objects have changed."""
        position, total_loss = TrainingPosition(**meta["position"]), tensors[_LOSS].reshape(())
        log = {str(name): float(value) for name, value in meta["log"].items()}
        for name, part in self._parts.items():
            part.load_training_state(wire.select(tensors, f"{_PART}{name}/"))
        _restore_random_state(wire.select(tensors, _RANDOM), meta["random"], self._generators)
        self._log.update(log)
        self.position, self.total_loss = position, total_loss

    def save_if_due(self, position: TrainingPosition, total_loss: torch.Tensor) -> None:
        """Write the checkpoint if the step's unsaved training takes longer than the interval.

        Args:
            position: Position in the training.
            total_loss: Sum of the losses of all images so far, shape ().

        Raises:
            StoreError: If the file can't be written.
        """
        if self._unsaved_seconds() >= self._step.seconds:
            self._write(position, total_loss)

    def end(self, position: TrainingPosition, total_loss: torch.Tensor) -> None:
        """End the training. Write the checkpoint if the step's unsaved training takes half of the interval or more.

        The other half remains for the next training. A step with little training in all writes nothing.

        Args:
            position: Position at the end of the training.
            total_loss: Sum of the losses of all images, shape ().

        Raises:
            StoreError: If the file can't be written.
        """
        if position == self.position:
            return
        if self._unsaved_seconds() >= self._step.seconds / 2:
            self._write(position, total_loss)
        else:
            self._step.unsaved = self._unsaved_seconds()

    def _unsaved_seconds(self) -> float:
        """Return the seconds of training in the step that no checkpoint contains."""
        return self._step.unsaved + time.monotonic() - self._written

    def _write(self, position: TrainingPosition, total_loss: torch.Tensor) -> None:
        """Write the checkpoint."""
        random_tensors, random_meta = _random_state(self._generators)
        tensors = {_LOSS: total_loss} | wire.prefixed(random_tensors, _RANDOM)
        for name, part in self._parts.items():
            tensors |= wire.prefixed(part.training_state(), f"{_PART}{name}/")
        meta = {"key": self._key, "position": asdict(position), "random": random_meta, "log": dict(self._log)}
        write_atomic(self._path, wire.encode(tensors, meta))
        self._written, self.position = time.monotonic(), position


def _copies(tensors: Tensors) -> Tensors:
    """Return copies of the tensors, which later changes of the originals don't change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _random_state(generators: Mapping[str, torch.Generator]) -> tuple[Tensors, Meta]:
    """Return the state of the global generators of torch, NumPy and Python, and of the given ones."""
    kind, keys, *numpy_rest = np.random.get_state(legacy=True)
    version, words, gauss = random.getstate()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
    if torch.cuda.is_initialized():
        tensors |= {f"cuda/{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    tensors |= {f"generator/{name}": generator.get_state() for name, generator in generators.items()}
    return tensors, {"numpy": [kind, *numpy_rest], "python": [version, list(words), gauss]}


def _restore_random_state(tensors: Tensors, meta: Mapping[str, Any], generators: Mapping[str, torch.Generator]) -> None:
    """Set the generators to a state from `_random_state`, in place."""
    torch.set_rng_state(tensors["torch"])
    kind, *numpy_rest = meta["numpy"]
    np.random.set_state((kind, tensors["numpy"].numpy().astype(np.uint32), *numpy_rest))
    version, words, gauss = meta["python"]
    random.setstate((version, tuple(words), gauss))
    for name, state in wire.select(tensors, "cuda/").items():
        torch.cuda.set_rng_state(state, int(name))
    for name, generator in generators.items():
        generator.set_state(tensors[f"generator/{name}"])
