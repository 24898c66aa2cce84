"""Files that are there whole or not at all, or that only their owner reads, and how much room a folder takes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from medfl.errors import StoreError

READ_ONLY = 0o444
"""Permissions of a file with several names."""

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
    temporary = _temporary_name(path)
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


def link_or_copy(path: Path, original: Path, data: bytes | memoryview) -> None:
    """Write a file as a hard link to another file with the same content; as a copy if the file system has no links.

    A file with several names is made read-only, as writing into it would change all of them. Replacing it, as
    `write_atomic` does, is possible.

    Args:
        path: The file to write; its folder is made.
        original: A file in the same file system that holds `data`.
        data: The content.

    Raises:
        StoreError: If the file can't be written.
    """
    temporary = _temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        os.link(original, temporary)
        os.chmod(temporary, READ_ONLY)
        os.replace(temporary, path)
        temporary.unlink(missing_ok=True)  # it stays if both names were links to one file already
        flush_folder(path.parent)
    except OSError:  # no hard links here, too many of one file, or another file system
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        write_atomic(path, data)


def _temporary_name(path: Path) -> Path:
    """Return the name, in the same folder, under which a file is written before it gets its own name."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


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
        "unwritable_file",
        f"Could not write '{path}': {error.strerror}. What was saved before is still valid: "
        "free some space or permit writing there, then give the same command again.",
        path=path,
        reason=error.strerror,
    )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_bytes(value: Any) -> bytes:
    """Return JSON as the content of a file: indented, with sorted keys."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, as `json_bytes` returns it."""
    write_atomic(path, json_bytes(value))


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, after a file there was renamed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files below a folder.

    A file with several names (hard links) counts once, links are not followed, and files that vanish meanwhile count
    nothing.
    """
    sizes: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(parent, name))
                sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Let only the owner read what is written: keys are among it."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
