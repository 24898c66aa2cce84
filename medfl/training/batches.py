"""Batches on their way from a data set to a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from medfl.types import Dataset, Loaded, Targets, Visited


def load(data: Dataset, batches: Iterable[torch.Tensor], generator: torch.Generator | None = None) -> Iterator[Loaded]:
    """Each batch of a data set in turn, on the CPU.

    Args:
        data: One that changes its cases at random (`Visited`) may ask for batches ahead of time.
        batches: Rows of each batch.
        generator: The stream of a training; the seed that it began with decides these changes, and nothing is drawn
            from it. None changes cases in the same way each time, as `Dataset.batch` does.
    """
    if isinstance(data, Visited):
        yield from data.visits(batches, 0 if generator is None else generator.initial_seed())
    else:
        yield from (Loaded(rows, *data.batch(rows)) for rows in batches)


def on_device(targets: Targets, device: str) -> Targets:
    """Targets, or each of several, on a device."""
    if isinstance(targets, dict):
        return {name: target.to(device) for name, target in targets.items()}
    return targets.to(device)
