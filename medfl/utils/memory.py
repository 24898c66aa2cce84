"""Memory management: reuse of freed memory during training, its release between steps, and computation in pieces.

By default glibc returns large blocks to the system as soon as they are freed. Training allocates the same blocks again
for the next batch, and the kernel has to clear each page of them. `keep_freed_memory` makes glibc keep them, and
`release_memory` returns them after a step, so that a process does not grow over the rounds of a long run.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PIECE_ELEMENTS = 2**18
"""Number of elements in a piece: 2 MB in float64. It is a multiple of any processor's vector width."""


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Split tensors of the same size into flat pieces at the same positions, to keep temporary results small.

    Args:
        tensors: Tensors with equal numbers of elements. A tensor that is written to must be contiguous.

    Yields:
        Tuples of pieces, one piece per tensor. Pieces share memory with contiguous tensors.
    """
    yield from zip(*(tensor.reshape(-1).split(PIECE_ELEMENTS) for tensor in tensors), strict=True)


def all_finite(tensor: torch.Tensor) -> bool:
    """Return True if all numbers of a tensor are finite."""
    if bool(tensor.sum().isfinite()):  # the usual case, ten times as fast; a sum of finite numbers may overflow
        return True
    return all(bool(piece.isfinite().all()) for (piece,) in pieces(tensor))


LITTER, LITTLE = 32 * 10**6, 16 * 10**6
"""Maximum bytes of garbage before a collection: `LITTER` during work, and `LITTLE` in pauses."""


class GarbageSweeper:
    """Garbage collection triggered by the size of discarded objects. Python's own triggers count objects, not bytes."""

    def __init__(self) -> None:
        self._left = 0

    def left(self, size: int, room: int = LITTER) -> None:
        """Record that `size` bytes were discarded. Collect garbage and release memory if the total exceeds `room`.

        Objects that exist at the first collection are excluded from later ones, so that those take milliseconds.
        """
        self._left += size
        if self._left > room:
            self._left = 0
            _freeze()
            gc.collect()
            release_memory()


def available_memory() -> int | None:
    """Return the bytes of memory that this machine can give to programs; None if the system does not state them."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


@functools.cache
def _freeze() -> None:
    """Collect garbage once, and exclude all existing objects from later collections."""
    gc.collect()
    gc.freeze()


@functools.cache
def _trim() -> Callable[[int], object] | None:
    """Return glibc's ``malloc_trim``; None with other C libraries, which don't need it."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


def release_memory() -> None:
    """Return freed memory to the system, if the C library supports it."""
    trim = _trim()
    if trim is not None:
        trim(0)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of two parameters of glibc's ``mallopt``, as in its ``malloc.h``: the free bytes above which the heap
shrinks, and the size from which a block has its own memory mapping."""

KEPT_BYTES = 10**9
"""Number of free bytes that glibc keeps at the end of the heap, and minimum size of blocks with their own mapping."""

MAX_OLD_MMAP_THRESHOLD = 2**25
"""Maximum mmap threshold in bytes of older glibc versions on 64-bit systems."""


def keep_freed_memory() -> bool:
    """Make glibc reuse freed blocks instead of returning each to the system. Applies to the whole process.

    Processes that are forked later inherit the setting. Nothing changes with another C library, or if the environment
    already configures glibc's allocator by a variable ``MALLOC_*`` or by ``glibc.malloc`` in ``GLIBC_TUNABLES``.

    Returns:
        True if glibc keeps freed memory, by this call or an earlier one.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    return _set_thresholds()


@functools.cache
def _set_thresholds() -> bool:
    """Set both thresholds. Return False if the C library is not glibc or refuses them."""
    try:
        library = ctypes.CDLL(None)
        mallopt, _ = library.mallopt, library.gnu_get_libc_version  # other libraries have a different `mallopt`
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    is_mmap_set = any(mallopt(M_MMAP_THRESHOLD, size) == 1 for size in (KEPT_BYTES, MAX_OLD_MMAP_THRESHOLD))
    return is_mmap_set and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) == 1
