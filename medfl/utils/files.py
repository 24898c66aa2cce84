"""How much room a folder takes."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from medfl.errors import StoreError


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut.

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
            os.fsync(file.fileno())
        os.replace(temporary, path)
        flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StoreError(
            f"Could not write '{path}': {error.strerror}. What was saved before is still valid: "
            "free some space or permit writing there, then give the same command again."
        ) from error


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
