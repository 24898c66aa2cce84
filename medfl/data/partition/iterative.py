"""Iterative stratification: parts in which each of several labels keeps its share, though cases have many at once."""

from __future__ import annotations

import numpy as np


def iterative(sets: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Deal units to parts of fixed sizes, so that each label's units are shared out as all units are.

    The label with the fewest units left comes first: rare labels are dealt while there is room to choose. Each of its
    units goes to the part that lacks most of that label; of several, to the one with most room; of several again, by
    lot. Then comes the label with the fewest units left now, and last the units without any label. With one label each
    part has its share, up to less than one unit.

    Args:
        sets: Which labels each unit has, shape (n, C), bool.
        sizes: Units of each part, shape (k,), int64, >= 0, of sum n.
        rng: Source of randomness.

    Returns:
        The part of each unit, shape (n,), int64; part j has exactly `sizes[j]` units.

    Source: Sechidis, Tsoumakas and Vlahavas, On the stratification of multi-label data, ECML PKDD 2011, algorithm 1.
    There, sizes are wishes as well; here a part that is full gets no more.
    """
    order, lot = rng.permutation(len(sets)), rng.permutation(len(sizes))
    room = sizes.astype(np.int64)
    wanted = sets.sum(axis=0, dtype=np.int64) * room[:, None]  # times n, so that shares are whole numbers
    parts = np.full(len(sets), -1, dtype=np.int64)
    while (left := sets[parts < 0].sum(axis=0)).any():
        label = int(np.where(left > 0, left, len(sets) + 1).argmin())
        for unit in order[(parts[order] < 0) & sets[order, label]].tolist():
            open_parts = np.flatnonzero(room)
            part = open_parts[np.lexsort((lot[open_parts], room[open_parts], wanted[open_parts, label]))[-1]]
            parts[unit] = part
            room[part] -= 1
            wanted[part, sets[unit]] -= len(sets)
    parts[order[parts[order] < 0]] = rng.permutation(np.repeat(np.arange(len(sizes)), room))
    return parts
