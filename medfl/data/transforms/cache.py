"""Caches, in memory or on disk, for the results of the transforms before the first random one.

Entries are keyed by the content of a case's files, not by their names. An entry is a packed item: the result of the
transforms for one case, as JSON and tensors (`medfl.data.transforms.packing`).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Protocol

from medfl.data.transforms.packing import Packed
from medfl.errors import DamagedError
from medfl.utils import wire
from medfl.utils.files import STALE_SECONDS, write_atomic


class ItemCache(Protocol):
    """Cache of packed items. The key must differ whenever the content may differ."""

    @property
    def copies(self) -> bool:
        """True if `get` returns tensors that no other object shares."""
        ...

    def get(self, key: str) -> Packed | None:
        """Return the packed item that is stored under a key; None if there is none, or it is damaged."""
        ...

    def put(self, key: str, content: Packed) -> None:
        """Store a packed item under a key."""
        ...


class MemoryCache:
    """Cache in the memory of this process."""

    copies = False
    """False: `get` returns tensors that the cache keeps, so callers must not change them."""

    def __init__(self) -> None:
        self._contents: dict[str, Packed] = {}

    def get(self, key: str) -> Packed | None:
        """Return the packed item that is stored under a key; None if there is none."""
        return self._contents.get(key)

    def put(self, key: str, content: Packed) -> None:
        """Store a packed item under a key."""
        self._contents[key] = content


class DiskCache:
    """Cache on disk with one file for each case.

    Files are encoded by `medfl.utils.wire`, so that a damaged file is detected and replaced, and written atomically.
    They contain no file names and nothing else of the data list, but they contain the images: protect the folder like
    the images. The constructor deletes unfinished files of killed processes.

    Args:
        folder: Folder of the cache, created when needed; several processes may share it.
    """

    copies = True
    """True: `get` returns tensors that no other object shares."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for path in folder.glob("*/.*.tmp"):
            with contextlib.suppress(OSError):  # another process already deleted the file
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    path.unlink()

    def get(self, key: str) -> Packed | None:
        """Return the packed item that is stored under a key; None if there is none, or the file is damaged."""
        try:
            tensors, meta = wire.decode(self._path(key).read_bytes())
        except (OSError, DamagedError):
            return None
        return meta["item"], tensors

    def put(self, key: str, content: Packed) -> None:
        """Store a packed item under a key, in a file of its own.

        Raises:
            StoreError: If the file can't be written.
        """
        item, tensors = content
        write_atomic(self._path(key), wire.encode(tensors, {"item": item}))

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.safetensors"
