"""Reuse of freed memory during training, its return to the system between steps, and calculations in small pieces.

By default glibc returns large blocks to the system as soon as they are freed. Training allocates the same blocks again
for the next batch, and the kernel has to clear each page of them. `keep_freed_memory` lets glibc keep them, and
`release` returns them when a step is over, so that the size of a process does not grow over the rounds of a long run.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PIECE = 2**18
"""Numbers of a piece: 2 MB in float64. It is a multiple of what any processor calculates at once."""


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tensors of one size, cut in the same places into flat pieces: what is made of a piece is small.

    Args:
        tensors: Of equal numbers of elements. One that is to be written has to be contiguous.

    Yields:
        The pieces of all of them, one after the other; they share memory with contiguous tensors.
    """
    yield from zip(*(tensor.reshape(-1).split(PIECE) for tensor in tensors), strict=True)


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether each number of a tensor is finite."""
    return all(bool(piece.isfinite().all()) for (piece,) in pieces(tensor))


LITTER, LITTLE = 32 * 10**6, 16 * 10**6
"""Bytes that may be left behind until they are swept: while work goes on, and when it pauses."""


class Sweeper:
    """Frees what only keeps itself alive, which Python finds by the number of objects, whatever their size."""

    def __init__(self) -> None:
        self._left = 0

    def left(self, size: int, room: int = LITTER) -> None:
        """Say that so many bytes more were left behind; sweeps if there are more than `room`.

        What is there at the first time is never looked at again, so that later ones take milliseconds.
        """
        self._left += size
        if self._left > room:
            self._left = 0
            _freeze()
            gc.collect()
            release()


@functools.cache
def _freeze() -> None:
    gc.collect()
    gc.freeze()


@functools.cache
def _trim() -> Callable[[int], object] | None:
    """glibc's ``malloc_trim``; other C libraries have none and need none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


def release() -> None:
    """Give freed memory back, where the C library knows how."""
    trim = _trim()
    if trim is not None:
        trim(0)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``, as in its ``malloc.h``."""

KEPT_BYTES = 10**9
"""Free bytes at the end of the heap that glibc keeps, and the size from which a block is mapped on its own."""

MAX_OLD_MMAP_THRESHOLD = 2**25
"""Largest mmap threshold in bytes that older releases of glibc accept, on 64-bit systems."""


def keep_freed_memory() -> bool:
    """Let glibc reuse freed blocks instead of returning each to the system; set for the whole process.

    Processes that are forked later inherit it. Nothing changes with another C library, or if the environment already
    configures glibc's allocator: by a variable ``MALLOC_*``, or by ``glibc.malloc`` in ``GLIBC_TUNABLES``.

    Returns:
        Whether glibc keeps freed memory now by this call or an earlier one.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    return _set_thresholds()


@functools.cache
def _set_thresholds() -> bool:
    """Set both thresholds; False if the C library is not glibc or refuses them."""
    try:
        library = ctypes.CDLL(None)
        mallopt, _ = library.mallopt, library.gnu_get_libc_version  # others have a `mallopt` that means something else
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    is_mmap_set = any(mallopt(M_MMAP_THRESHOLD, size) == 1 for size in (KEPT_BYTES, MAX_OLD_MMAP_THRESHOLD))
    return is_mmap_set and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) == 1
