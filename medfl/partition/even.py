"""Split a pile evenly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def deal_evenly(
    members: np.ndarray, owners: np.ndarray, parts: Sequence[list[np.ndarray]], rng: np.random.Generator
) -> None:
    """Cut a pile into pieces whose sizes differ by at most 1 and add one to each owner's; without owners, do nothing.

    Args:
        members: The pile, shuffled, shape (n,).
        owners: Which sites share it, shape (m,).
        parts: The pieces of all sites; changed.
        rng: Decides who gets the larger pieces.
    """
    pieces = np.array_split(members, max(len(owners), 1))
    for owner, piece in zip(rng.permutation(owners), pieces, strict=False):
        parts[owner].append(piece)
