"""Locks between processes of one machine. A lock is released when its process ends, even if the process is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

LOCK_FILE = ".lock"
"""Name of the locked file in a folder that is being written."""


@contextlib.contextmanager
def hold_lock(path: Path, patience: float = 0.0, *, remove: bool = False) -> Iterator[bool]:
    """Try to lock a file for the duration of the block. Forked processes also hold the lock as long as they live.

    Args:
        path: File to lock; created if it does not exist.
        patience: Maximum seconds to wait for the lock.
        remove: Whether the process that holds the lock removes the file at the end.

    Yields:
        True if the lock was acquired.

    Raises:
        OSError: If the file can't be written.
    """
    end = time.monotonic() + patience
    while True:
        with path.open("a") as file:
            locked = _lock(file, end)
            if locked and not _is_there(file, path):  # the previous holder removed the file
                continue
            try:
                yield locked
            finally:
                if locked and remove:
                    path.unlink(missing_ok=True)
            return


def is_being_written(folder: Path) -> bool:
    """Return True if a process holds a folder's `LOCK_FILE`, without disturbing it."""
    lock = folder / LOCK_FILE
    if not lock.is_file():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a writer that starts now waits only a moment
        except BlockingIOError:
            return True
    return False


def _lock(file: IO[str], end: float) -> bool:
    """Try to lock an open file until a time. Return whether it is locked."""
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)


def _is_there(file: IO[str], path: Path) -> bool:
    """Return True if an open file is still the file at its path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
