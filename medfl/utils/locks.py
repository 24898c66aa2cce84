"""Locks between processes of one machine. A lock ends with the process that holds it, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

LOCK = ".lock"
"""The file that is locked in a folder that is written to."""


@contextlib.contextmanager
def held(path: Path, patience: float = 0.0, *, remove: bool = False) -> Iterator[bool]:
    """Try to lock a file, for the length of the block. Forked processes hold it, too, and as long as they live.

    Args:
        path: The file to lock; made if it is not there.
        patience: Seconds to wait for it.
        remove: Whether the file is removed at the end, by the one who holds it.

    Yields:
        Whether the lock could be had.

    Raises:
        OSError: If the file can't be written.
    """
    end = time.monotonic() + patience
    while True:
        with path.open("a") as file:
            locked = _lock(file, end)
            if locked and not _is_there(file, path):  # removed by the one who held it before
                continue
            try:
                yield locked
            finally:
                if locked and remove:
                    path.unlink(missing_ok=True)
            return


def being_written(folder: Path) -> bool:
    """Whether a process holds a folder by its `LOCK`, found out without disturbing it."""
    lock = folder / LOCK
    if not lock.is_file():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a writer that starts just now waits a moment
        except BlockingIOError:
            return True
    return False


def _lock(file: IO[str], end: float) -> bool:
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)


def _is_there(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
