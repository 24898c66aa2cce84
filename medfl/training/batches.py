"""Batches on their way from a data set to a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from medfl.types import Dataset, Loaded, Targets, Visited


def load(data: Dataset, batches: Iterable[torch.Tensor], stream: int) -> Iterator[Loaded]:
    """Each batch of a data set in turn, on the CPU.

    Args:
        data: One that changes its cases at random (`Visited`) may ask for batches ahead of time.
        batches: Rows of each batch.
        stream: Seed of these changes.
    """
    if isinstance(data, Visited):
        yield from data.visits(batches, stream)
    else:
        yield from (Loaded(rows, *data.batch(rows)) for rows in batches)


def on_device(targets: Targets, device: str) -> Targets:
    """Targets, or each of several, on a device."""
    if isinstance(targets, dict):
        return {name: target.to(device) for name, target in targets.items()}
    return targets.to(device)
