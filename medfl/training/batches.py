"""Loading of batches from a data set, and their transfer to a device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch

from medfl.types import Dataset, LoadedBatch, Targets, is_augmenting
from medfl.utils.heartbeat import count_batches

TRAINING, SCORING = "training", "scoring"
"""Purposes of loaded batches, as progress reports name them: training a model, and evaluating it."""


def load_batches(
    data: Dataset,
    batches: Iterable[torch.Tensor],
    generator: torch.Generator | None = None,
    doing: str = TRAINING,
    total: int | None = None,
    skip: int = 0,
) -> Iterator[LoadedBatch]:
    """Yield the batches of a data set in order, on the CPU.

    Counts the batches for progress reports (`medfl.utils.heartbeat`).

    Args:
        data: The data set. A data set with random augmentation (`AugmentingDataset`) may read batches ahead.
        batches: Row numbers of each batch.
        generator: Random generator of a training. Its initial seed determines the augmentation, and no number is drawn
            from it. None augments cases in the same way each time, as `Dataset.batch` does.
        doing: Purpose of the batches, `TRAINING` or `SCORING`.
        total: Number of batches; None if unknown.
        skip: Number of batches at the beginning that are not loaded, because an earlier process has used them. The
            augmentation of the others is the same as with them.
    """
    if is_augmenting(data):
        stream = 0 if generator is None else generator.initial_seed()
        return count_batches(data.visits(batches, stream, skip), doing, total, skip)
    chosen = itertools.islice(batches, skip, None)
    return count_batches((LoadedBatch(rows, *data.batch(rows)) for rows in chosen), doing, total, skip)


def on_device(targets: Targets, device: str) -> Targets:
    """Return the targets, or a dictionary of targets, on a device."""
    if isinstance(targets, dict):
        return {name: target.to(device) for name, target in targets.items()}
    return targets.to(device)
