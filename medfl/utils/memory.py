"""Giving freed memory back to the system.

A step frees tensors of many megabytes, and glibc keeps most of what is freed for later; over the rounds of a long run
that looks like a leak. A trim after each job costs a few milliseconds and keeps the size flat.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


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
