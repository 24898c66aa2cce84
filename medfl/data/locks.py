"""A lock between processes of one machine."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Try to lock a file without waiting. The lock ends with the block, or with the process, and the file goes then.

    Args:
        path: The file to lock; made if it is not there.

    Yields:
        Whether the lock could be had.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
