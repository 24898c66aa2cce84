"""Scores under several weightings of the images, on which resampling and exchange tests are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

ScoreFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Function that computes a score under several weightings of the images, and returns a score for each, (B,).

Arguments: predictions (N, K) with K values for each of N images, targets (N, ...), and B weightings (N, B), float64.
"""

WEIGHTS = 2**20
"""Limit of memory: number of image weights that are scored at once."""


def patient_of_each_image(targets: torch.Tensor, patients: torch.Tensor | None) -> torch.Tensor:
    """Return the patient number of each image, from 0, (N,), int64; without patients each image is one patient."""
    return torch.arange(len(targets)) if patients is None else patients.unique(return_inverse=True)[1]


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread within the block: threads slow many small operations down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
