"""Batches on their way from a data set to a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from medfl.types import Dataset, Loaded, Targets, Visited
from medfl.utils.pulse import counted

TRAINING, SCORING = "training", "scoring"
"""What batches are for."""


def load(
    data: Dataset,
    batches: Iterable[torch.Tensor],
    generator: torch.Generator | None = None,
    doing: str = TRAINING,
    total: int | None = None,
) -> Iterator[Loaded]:
    """Each batch of a data set in turn, on the CPU, counted for whoever watches (`medfl.utils.pulse`).

    Args:
        data: One that changes its cases at random (`Visited`) may ask for batches ahead of time.
        batches: Rows of each batch.
        generator: The stream of a training; the seed that it began with decides these changes, and nothing is drawn
            from it. None changes cases in the same way each time, as `Dataset.batch` does.
        doing: What they are for, `TRAINING` or `SCORING`.
        total: How many there will be; None if nobody knows.
    """
    if isinstance(data, Visited):
        return counted(data.visits(batches, 0 if generator is None else generator.initial_seed()), doing, total)
    return counted((Loaded(rows, *data.batch(rows)) for rows in batches), doing, total)


def on_device(targets: Targets, device: str) -> Targets:
    """Targets, or each of several, on a device."""
    if isinstance(targets, dict):
        return {name: target.to(device) for name, target in targets.items()}
    return targets.to(device)
