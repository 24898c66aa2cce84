"""Where the beginnings of cases are kept: in memory, or on disk. Both know a case by what it holds, not by its name."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Protocol

from medfl.data.transforms.packing import Packed
from medfl.errors import DamagedError
from medfl.utils import wire
from medfl.utils.files import write_atomic

DAY = 24 * 3600
"""Seconds after which a file that is still being written belongs to a process that was killed."""


class Cache(Protocol):
    """Keeps beginnings under a key that differs whenever their content may differ."""

    @property
    def copies(self) -> bool:
        """Whether `get` gives tensors that nobody else has."""
        ...

    def get(self, key: str) -> Packed | None:
        """What is kept under a key; None where there is nothing, or it is damaged."""
        ...

    def put(self, key: str, content: Packed) -> None:
        """Keep it."""
        ...


class MemoryCache:
    """In this process."""

    copies = False

    def __init__(self) -> None:
        self._contents: dict[str, Packed] = {}

    def get(self, key: str) -> Packed | None:
        """As `Cache.get`."""
        return self._contents.get(key)

    def put(self, key: str, content: Packed) -> None:
        """As `Cache.put`."""
        self._contents[key] = content


class DiskCache:
    """A file for each case, a blob of `medfl.utils.wire`, so that a damaged one is noticed and made anew.

    A file is there whole or not at all. It holds neither names of files nor anything else of the list; the images are
    as they were, so the folder needs the same care as theirs.

    Args:
        folder: Made when it is needed; several processes may share it.
    """

    copies = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for path in folder.glob("*/.*.tmp"):
            with contextlib.suppress(OSError):  # another process was faster
                if time.time() - path.stat().st_mtime > DAY:
                    path.unlink()

    def get(self, key: str) -> Packed | None:
        """As `Cache.get`."""
        try:
            tensors, meta = wire.decode(self._path(key).read_bytes())
        except (OSError, DamagedError):
            return None
        return meta["item"], tensors

    def put(self, key: str, content: Packed) -> None:
        """As `Cache.put`.

        Raises:
            StoreError: If it can't be written.
        """
        item, tensors = content
        write_atomic(self._path(key), wire.encode(tensors, {"item": item}))

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.safetensors"
