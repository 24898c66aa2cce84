"""Check how glibc serves a large block: from the heap, or with a separate mapping."""

from __future__ import annotations

import ctypes

LARGE = 40 * 2**20
"""Bytes above which glibc always maps a block by default: its dynamic threshold goes up to 32 MiB."""


class Mallinfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def is_mapped(size: int = LARGE) -> bool | None:
    """Return True if glibc gives a block of so many bytes a separate mapping; None with another C library."""
    try:
        library = ctypes.CDLL(None)
        mallinfo2, malloc, free = library.mallinfo2, library.malloc, library.free
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo2.restype, malloc.restype, malloc.argtypes = Mallinfo2, ctypes.c_void_p, [ctypes.c_size_t]
    free.argtypes = [ctypes.c_void_p]
    before = mallinfo2().hblks
    block = malloc(size)
    mapped = mallinfo2().hblks > before
    free(block)
    return bool(mapped)
