"""Checkpoints of trainings: a training that starts again from one takes the same steps as without the interruption."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from medfl.data.pooled import TensorData
from medfl.data.transforms.dataset import TransformDataset
from medfl.settings import Settings
from medfl.training import checkpoints
from medfl.training.checkpoints import ModelPart, StepCheckpoints, TrainingPosition, delete_checkpoints
from medfl.training.loop import Batch, TrainResult, train
from medfl.types import Dataset, Meta, Tensors
from medfl.utils import wire
from medfl.utils.rng import seeded_generators
from medfl.utils.wire import tensors_equal

SETTINGS = Settings(rounds=1, epochs=2, batch_size=4)
IMAGES = torch.rand(10, 1, 6, 6, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(10) % 3


class KilledError(Exception):
    """Simulated kill of a training."""


def plain_data() -> Dataset:
    return TensorData(IMAGES, LABELS)


def augmented_data() -> Dataset:
    """Return cases whose transform draws from NumPy's global generator."""
    cases = [{"image": image, "label": int(label)} for image, label in zip(IMAGES, LABELS, strict=True)]

    def shift(case: dict[str, object]) -> dict[str, object]:
        return case | {"image": case["image"] + float(np.random.rand())}  # type: ignore[operator]

    return TransformDataset(cases, shift, inputs="image", targets="label", cache="none")


def fit(
    folder: Path,
    data: Dataset,
    kill_after: int | None = None,
    seconds: float = 0.0,
    step: int = 1,
    digest: str = "request",
) -> tuple[Tensors, TrainResult]:
    """Train a network with dropout, batch norm and momentum, with all global generators in the loss.

    Args:
        folder: Folder of the checkpoints.
        data: Training data.
        kill_after: Number of batches after which the training is killed.
        seconds: Seconds between two checkpoints.
        step: Number of the step.
        digest: Digest of the request.
    """
    with seeded_generators("test"):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        generator, augmentation = torch.Generator().manual_seed(2), torch.Generator().manual_seed(3)
        checkpoint = StepCheckpoints(folder, step, digest, seconds).next_training()
        checkpoint.begin({"own": ModelPart(model, optimizer)}, {"augment": augmentation})
        seen = 0

        def loss(batch: Batch) -> torch.Tensor:
            nonlocal seen
            if seen == kill_after:
                raise KilledError
            seen += 1
            noise = torch.rand(1, generator=augmentation) + random.random() + float(np.random.rand())
            return nn.functional.cross_entropy(model(batch.images * noise), batch.targets)  # type: ignore[arg-type]

        done = train(model, data, loss, optimizer, SETTINGS, generator, checkpoint=checkpoint)
        return dict(model.state_dict()), done


@pytest.mark.parametrize("make_data", [plain_data, augmented_data])
@pytest.mark.parametrize("kills", [[1], [3], [5], [2, 1, 1]])
def test_a_killed_training_ends_with_the_same_bits(
    kills: Sequence[int], make_data: Callable[[], Dataset], tmp_path: Path
) -> None:
    whole, result = fit(tmp_path / "whole", make_data())
    for batches in kills:
        with pytest.raises(KilledError):
            fit(tmp_path / "killed", make_data(), kill_after=batches)
    tensors, continued = fit(tmp_path / "killed", make_data())
    assert tensors_equal(tensors, whole)
    assert (continued.batches, continued.samples, continued.loss) == (result.batches, result.samples, result.loss)
    assert result.batches == 6


def test_batches_before_the_checkpoint_are_not_trained_again(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        fit(tmp_path, plain_data(), kill_after=4)
    with pytest.raises(KilledError):
        fit(tmp_path, plain_data(), kill_after=1)
    fit(tmp_path, plain_data(), kill_after=1)  # the sixth batch is the last one


def killed_after_three_batches(folder: Path) -> Path:
    """Kill a training after its third batch, and return the file of its checkpoint."""
    with pytest.raises(KilledError):
        fit(folder, plain_data(), kill_after=3)
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("is_damaged", [True, False])
def test_without_a_usable_checkpoint_a_training_starts_at_the_beginning(
    is_damaged: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, _ = fit(tmp_path / "whole", plain_data())
    path = killed_after_three_batches(tmp_path / "killed")
    folder = path.parent
    if is_damaged:
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    with caplog.at_level(logging.WARNING, logger="medfl"):
        tensors, result = fit(folder, plain_data())
    assert tensors_equal(tensors, whole)
    assert result.batches == 6
    assert len(caplog.records) == is_damaged


def without_a_weight(tensors: Tensors, meta: Meta) -> None:
    del tensors["part/own/model/4.bias"]


def with_a_weight_of_another_shape(tensors: Tensors, meta: Meta) -> None:
    tensors["part/own/model/4.weight"] = torch.zeros(3, 65)


def with_a_state_of_an_unknown_parameter(tensors: Tensors, meta: Meta) -> None:
    tensors["part/own/optimizer/5.weight/exp_avg"] = torch.zeros(3)


def with_another_sum_of_losses(tensors: Tensors, meta: Meta) -> None:
    tensors["loss"] = torch.zeros(2)


def with_a_short_random_state(tensors: Tensors, meta: Meta) -> None:
    tensors["random/generator/augment"] = torch.zeros(3, dtype=torch.uint8)


def without_a_random_state(tensors: Tensors, meta: Meta) -> None:
    del meta["random"]


def at_an_impossible_position(tensors: Tensors, meta: Meta) -> None:
    meta["position"]["steps"] = meta["position"]["number"] + 1


def at_a_fraction_of_a_batch(tensors: Tensors, meta: Meta) -> None:
    meta["position"]["number"] = 2.5


def with_a_text_in_the_log(tensors: Tensors, meta: Meta) -> None:
    meta["log"] = {"loss": "low"}


@pytest.mark.parametrize(
    "change",
    [
        without_a_weight,
        with_a_weight_of_another_shape,
        with_a_state_of_an_unknown_parameter,
        with_another_sum_of_losses,
        with_a_short_random_state,
        without_a_random_state,
        at_an_impossible_position,
        at_a_fraction_of_a_batch,
        with_a_text_in_the_log,
    ],
)
def test_a_forged_checkpoint_changes_nothing(
    change: Callable[[Tensors, Meta], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum is right, and part of its content is loaded before the first error."""
    whole, _ = fit(tmp_path / "whole", plain_data())
    path = killed_after_three_batches(tmp_path / "killed")
    folder = path.parent
    tensors, meta = wire.decode(path.read_bytes())
    change(tensors, meta)
    path.write_bytes(wire.encode(tensors, meta))
    with caplog.at_level(logging.WARNING, logger="medfl"):
        trained, result = fit(folder, plain_data())
    assert tensors_equal(trained, whole)
    assert result.batches == 6
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("step", "digest"), [(1, "another request"), (2, "request")])
def test_the_checkpoint_of_another_request_or_step_is_ignored(step: int, digest: str, tmp_path: Path) -> None:
    fit(tmp_path, plain_data())
    fit(tmp_path, plain_data(), kill_after=0)  # it continues at its end, and trains no batch
    with pytest.raises(KilledError):
        fit(tmp_path, plain_data(), kill_after=0, step=step, digest=digest)


def test_a_checkpoint_is_written_when_the_interval_has_passed(tmp_path: Path) -> None:
    fit(tmp_path / "long", plain_data(), seconds=1000.0)
    assert not (tmp_path / "long").exists()
    fit(tmp_path / "short", plain_data())
    assert [path.name for path in (tmp_path / "short").iterdir()] == ["training-1.safetensors"]
    delete_checkpoints(tmp_path / "short")
    assert not [*(tmp_path / "short").iterdir()]


def test_trainings_of_a_step_have_files_of_their_own(tmp_path: Path) -> None:
    steps = StepCheckpoints(tmp_path, 1, "request", 0.0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):
        checkpoint = steps.next_training()
        checkpoint.begin({"own": ModelPart(model, optimizer)}, {})
        checkpoint.save_if_due(checkpoint.position, torch.zeros(()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["training-1.safetensors", "training-2.safetensors"]


class Clock:
    """Clock whose time passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.now


@pytest.mark.parametrize(
    "minutes",
    [[180.0], [9.0, 9.0], [59.0, 59.0, 59.0], [89.0, 89.0], [4.0] * 20, [1.0, 30.0, 2.0, 30.0], [14.5, 0.25, 5.25] * 3],
)
def test_a_kill_loses_at_most_the_interval_and_a_batch(
    minutes: Sequence[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainings of a step with batches of 15 seconds, and an interval of ten minutes.

    Within a training, checkpoints are written at most every five minutes, as earlier trainings take up to half of the
    interval. One may follow at its end.
    """
    clock, model, writes = Clock(), nn.Linear(1, 1), list[float]()
    monkeypatch.setattr(checkpoints, "time", clock)
    monkeypatch.setattr(checkpoints, "write_atomic", lambda path, blob: writes.append(clock.now))
    parts = {"own": ModelPart(model, torch.optim.SGD(model.parameters(), lr=1.0))}
    steps = StepCheckpoints(tmp_path, 1, "request", 600.0)
    ended, lost = list[float](), 0.0
    for training in minutes:
        checkpoint = steps.next_training()
        checkpoint.begin(parts, {})
        batches = round(4 * training)
        for batch in range(1, batches + 1):
            clock.now += 15
            position = TrainingPosition(batch, batch, batch)
            checkpoint.save_if_due(position, torch.zeros(()))
            lost = max(lost, sum(ended) + 15.0 * (batch - checkpoint.position.number))
        checkpoint.end(position, torch.zeros(()))
        ended.append(15.0 * (batches - checkpoint.position.number))
    assert lost <= 600
    assert steps.unsaved == sum(ended) < 300
    assert (60 * sum(minutes) - 600) / 600 <= len(writes) <= 60 * sum(minutes) / 300 + len(minutes)


def test_the_end_of_a_long_training_is_in_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training takes five of ten minutes, so it does not start again if the next training is killed."""
    clock = Clock()
    monkeypatch.setattr(checkpoints, "time", clock)
    step = nn.Module.__call__

    def slow(module: nn.Module, *args: object) -> object:
        clock.now += 50 if isinstance(module, nn.Sequential) else 0
        return step(module, *args)

    monkeypatch.setattr(nn.Module, "__call__", slow)
    whole, _ = fit(tmp_path, plain_data(), seconds=600.0)  # six batches
    assert [path.name for path in tmp_path.iterdir()] == ["training-1.safetensors"]
    tensors, _ = fit(tmp_path, plain_data(), kill_after=0)
    assert tensors_equal(tensors, whole)
