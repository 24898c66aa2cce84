"""Files that are there whole or not at all, or that only their owner reads, and how much room a folder takes."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from medfl.errors import StoreError

FLUSHED_AT_ONCE = 8
"""Files that `flush_files` hands to the disk at once."""


def write_atomic(path: Path, data: bytes | memoryview, flush: bool = True) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut.

    Args:
        path: It; its folder is made.
        data: All of it.
        flush: False leaves it to `flush_files` to have it on the disk; a power cut before may leave it damaged.

    Raises:
        StoreError: If it can't be written (disk full, no permission). What stood there before is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if temporary.is_symlink():  # in a folder from elsewhere; what it leads to is not ours
            temporary.unlink()
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if flush:
            flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _not_written(path, error) from error


def mapped(path: Path) -> memoryview:
    """The bytes of a file, which the system reads when they are looked at and forgets where memory is short.

    They may be written; the file stays as it is. It may be deleted, but has to keep its length, or the process ends.

    Raises:
        OSError: If it can't be read.
    """
    with open(path, "rb") as file:
        empty = not os.fstat(file.fileno()).st_size  # which can't be mapped
        return memoryview(bytearray()) if empty else memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def flush_files(paths: Sequence[Path]) -> None:
    """Have files on the disk that `write_atomic` left to this: several at once, which a disk takes as fast as one.

    Raises:
        StoreError: If one can't be written.
    """
    with ThreadPoolExecutor(FLUSHED_AT_ONCE) as pool:
        for _ in pool.map(_flush_file, paths):
            pass


def _flush_file(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        flush_folder(path.parent)
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"Could not write '{path}': {error.strerror}. What was saved before is still valid: "
        "free some space or permit writing there, then give the same command again."
    )


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, indented, with sorted keys."""
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, after a file there was renamed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bytes_in(folder: Path) -> int:
    """Bytes of all files below a folder; links are not followed, and files that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Let only the owner read what is written: keys are among it."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
