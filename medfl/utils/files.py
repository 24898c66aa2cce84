"""File operations: atomic and private writing, hard links, memory mapping, flushing, and folder sizes."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from medfl.errors import StoreError

STALE_SECONDS = 24 * 3600
"""Age, in seconds, after which an unfinished file must belong to a process that was killed."""

READ_ONLY = 0o444
"""Permissions of a file with several hard links: readable by all, writable by no one."""

MAX_PARALLEL_FLUSHES = 8
"""Number of files that `flush_files` flushes at the same time."""


def gzip_bytes(content: bytes) -> bytes:
    """Return compressed content, without a time stamp or a file name in it."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as file:
        file.write(content)
    return buffer.getvalue()


def write_atomic(path: Path, data: bytes | memoryview, flush: bool = True) -> None:
    """Write a file atomically: after a crash or power cut, it has either the new content or the old one.

    Args:
        path: Path of the file; its folder is created.
        data: Content of the file.
        flush: Whether to flush the file to the disk. If False, call `flush_files` later; a power cut before that may
            damage the file.

    Raises:
        StoreError: If the file can't be written (disk full, no permission). An existing file is unchanged then.
    """
    temporary = _temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if temporary.is_symlink():  # in a folder from an untrusted source, a link could lead to any file
            temporary.unlink()
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if flush:
            flush_to_disk(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _not_written(path, error) from error


def link_or_copy(path: Path, original: Path, data: bytes | memoryview) -> None:
    """Write a file as a hard link to a file with the same content, or as a copy if hard links are not supported.

    A file with several links is made read-only, because writing to it would change all of them. It can be replaced, as
    `write_atomic` does.

    Args:
        path: Path of the file; its folder is created.
        original: File on the same file system that contains `data`.
        data: Content of the file.

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
        temporary.unlink(missing_ok=True)  # `os.replace` keeps it if both names are links to the same file
        flush_to_disk(path.parent)
    except OSError:  # hard links are not supported, too many exist, or the file system differs
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        write_atomic(path, data)


def _temporary_name(path: Path) -> Path:
    """Return the temporary name, in the same folder, under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def map_file(path: Path) -> memoryview:
    """Map a file into memory, copy-on-write. The system reads pages on access and may drop them if memory is short.

    The memory may be written; the file does not change. The file may be deleted, but must not be truncated while it is
    mapped, or the process is killed.

    Raises:
        OSError: If the file can't be read.
    """
    with open(path, "rb") as file:
        empty = not os.fstat(file.fileno()).st_size  # an empty file can't be mapped
        return memoryview(bytearray()) if empty else memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def flush_files(paths: Sequence[Path]) -> None:
    """Flush files to the disk that `write_atomic` wrote without flushing, and then the entries of their folders.

    Several are flushed at the same time for speed. All folders come last, because one write of the file system's
    journal can then hold the entries of all of them.

    Raises:
        StoreError: If a file can't be written.
    """
    with ThreadPoolExecutor(MAX_PARALLEL_FLUSHES) as pool:
        for flush in (_flush, lambda path: _flush(path.parent)):
            for _ in pool.map(flush, paths):
                pass


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    try:
        flush_to_disk(path)
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> StoreError:
    """Return the error for a file that can't be written."""
    return StoreError(
        "unwritable_file",
        f"Could not write '{path}': {error.strerror}. Everything saved before is still valid: "
        "free some space or permit writing there, then repeat the same command.",
        path=path,
        reason=error.strerror,
    )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_bytes(value: Any) -> bytes:
    """Serialize JSON as the content of a file: indented, with sorted keys."""
    data = bytearray()  # `json.dumps` would hold each number and bracket as an object of its own
    for piece in json.JSONEncoder(indent=2, sort_keys=True).iterencode(value):
        data += piece.encode()
    return bytes(data + b"\n")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, in the form of `json_bytes`."""
    write_atomic(path, json_bytes(value))


def flush_to_disk(path: Path) -> None:
    """Flush a file's content, or a folder's entries after a file in it was renamed, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bytes_in(folder: Path) -> int:
    """Return the total size in bytes of all files below a folder.

    A file with several hard links counts once. Symbolic links are not followed. Files that are deleted in the meantime
    count as 0.
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
    """Create files that only their owner can read within the block, for files that contain keys."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
