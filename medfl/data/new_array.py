"""A new array file that is filled piece by piece."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from medfl.errors import DataError


def new_array(path: Path, shape: Sequence[int], dtype: DTypeLike) -> np.memmap:
    """Make an array file on a disk that has room for it; a mapped file on a full disk would kill the process.

    Args:
        path: The ``.npy`` file to write, in a folder that is there.
        shape: Its shape.
        dtype: Its type.

    Returns:
        The memory-mapped array, to be filled; ``flush`` it at the end.

    Raises:
        DataError: If the disk has no room for it.
    """
    kind = np.dtype(dtype)
    needed, free = int(np.prod([int(length) for length in shape], dtype=object)) * kind.itemsize, _free(path.parent)
    if needed > free:
        raise DataError(
            f"the array of images needs {needed / 1e9:.1f} GB, the disk of --out has {free / 1e9:.1f} GB left. Make "
            "room, give an --out on another disk, or choose a smaller size."
        )
    return np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=tuple(shape))


def keep_rows(target: Path, rows: Sequence[int]) -> None:
    """Keep some rows of an array file, in the order given."""
    whole = np.load(target, mmap_mode="r")
    beside = target.with_name(f"kept-{target.name}")
    kept = new_array(beside, (len(rows), *whole.shape[1:]), whole.dtype)
    for place, row in enumerate(rows):
        kept[place] = whole[row]
    kept.flush()
    os.replace(beside, target)


def _free(folder: Path) -> int:
    """Bytes that are left on the disk of a folder."""
    return shutil.disk_usage(folder).free
