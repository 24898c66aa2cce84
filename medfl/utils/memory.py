"""Giving freed memory back to the system, and calculating on large tensors without copies of them.

A step frees tensors of many megabytes, and glibc keeps most of what is freed for later; over the rounds of a long run
that looks like a leak. A trim after each job costs a few milliseconds and keeps the size flat.
"""

from __future__ import annotations

import ctypes
import functools
import gc
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
