"""Record of an ingestion's progress on disk, so that an interrupted ingestion can be resumed.

An ingestion reads items, such as image files, into the rows of one array: item n becomes row n. The work folder
contains the partly filled array and ``journal.jsonl``. The journal's first line describes the array and the recipe,
which is the settings that decide the pixels. Each further line records one finished row, and is written only after the
row is on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.ingest.array_file import ArrayFile, new_array, writing

ARRAY_FILE = "images.npy"
"""File name of the image array, in the work folder and in the prepared data set."""

FLUSH_SECONDS = 2.0
"""Seconds between two writes of the journal: the most work that is lost when the machine stops."""

_VERSION = 2


def item_stamp(item: object, files: Sequence[Path]) -> str:
    """Return a hash that changes when an item or one of its files changes. The hash reveals no file name.

    Args:
        item: Item whose ``repr`` is hashed.
        files: Files whose paths, sizes and modification times are hashed; missing files are skipped.

    Returns:
        16 hexadecimal digits.
    """
    parts = [repr(item)]
    for path in files:
        with contextlib.suppress(OSError):
            stat = path.stat()
            parts.append(f"{path}|{stat.st_size}|{stat.st_mtime_ns}")
    return hashlib.blake2b("\n".join(parts).encode(errors="surrogateescape"), digest_size=8).hexdigest()


class Checkpoint:
    """Finished rows of an array. Resumes an earlier ingestion with the same recipe, otherwise starts a new array.

    Args:
        work: Existing folder for the journal and the array.
        stamps: Hash of the item of each row (`item_stamp`).
        shape: Shape of the whole array, (rows, ...).
        dtype: Data type of the array.
        recipe: Settings that decide the pixels, as JSON. If they differ from the journal's, all rows are read again.

    Attributes:
        array: Path of the array file.
        done: Maps the number of each finished row to the metadata that were read with it.

    Raises:
        DataError: If the disk has no room for the array.
    """

    def __init__(
        self, work: Path, stamps: Sequence[str], shape: Sequence[int], dtype: np.dtype, recipe: dict[str, Any]
    ) -> None:
        self.array = work / ARRAY_FILE
        self.done: dict[int, dict[str, Any]] = {}
        self._path, self._stamps = work / "journal.jsonl", stamps
        head = {"version": _VERSION, "shape": list(shape), "dtype": dtype.str, "recipe": recipe}
        self._head = json.loads(json.dumps(head))
        if not self._resume():
            self._path.unlink(missing_ok=True)
            with writing(), new_array(self.array, shape, dtype):
                self._path.write_text(json.dumps(self._head) + "\n", encoding="utf-8")
        self._waiting: list[str] = []
        self._written = time.monotonic()

    def add(self, row: int, facts: dict[str, Any]) -> None:
        """Record that a row is finished; write to the journal every `FLUSH_SECONDS`.

        Args:
            row: Number of the row.
            facts: Metadata of the row, as JSON.
        """
        self.done[row] = facts
        self._waiting.append(json.dumps({"row": row, "stamp": self._stamps[row], "facts": facts}))
        if time.monotonic() - self._written >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the finished rows to the disk, then their lines to the journal.

        Raises:
            DataError: If the disk is full.
        """
        if self._waiting:
            with ArrayFile(self.array) as pixels:
                pixels.flush()
            with writing(), self._path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in self._waiting))
                file.flush()
                os.fsync(file.fileno())
        self._waiting, self._written = [], time.monotonic()

    def _resume(self) -> bool:
        """Load an earlier journal into `done`; return False if there is none with this recipe and a complete array."""
        try:
            with ArrayFile(self.array) as pixels:
                shape = list(pixels.shape)
            head, *lines = self._path.read_text(encoding="utf-8").splitlines()
            if json.loads(head) != self._head or shape != self._head["shape"]:
                return False
        except (OSError, ValueError):
            return False
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line may be cut
                entry = json.loads(line)
                if self._stamps[entry["row"]] == entry["stamp"]:
                    self.done[entry["row"]] = entry["facts"]
        if not ends_with_newline(self._path):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")
        return True


def ends_with_newline(path: Path) -> bool:
    """Return True if the last line of a non-empty text file is complete."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
