"""What an ingestion has done so far, on disk, so that it can go on after an interruption.

The work folder holds the array, filled in part, and ``journal.jsonl``: a line that says what is made, then a line for
each row that is done. A line is written only after its row is on disk.
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

from medfl.ingest.array_file import ArrayFile, new_array, writing

ARRAY = "images.npy"
"""The array file in the work folder."""

EVERY_SECONDS = 2.0
"""How much work is lost at most when the machine stops."""

_VERSION = 2


def stamp_of(item: object, files: Sequence[Path]) -> str:
    """What changes when an item or one of its files changes: a hash, from which no name can be read.

    Args:
        item: Its ``repr`` counts.
        files: Their sizes and times of change count; a file may be missing.

    Returns:
        16 hexadecimal digits.
    """
    parts = [repr(item)]
    for path in files:
        with contextlib.suppress(OSError):
            stat = path.stat()
            parts.append(f"{path}|{stat.st_size}|{stat.st_mtime_ns}")
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


class Checkpoint:
    """The rows of an array that are done; it goes on where an earlier one with the same recipe stopped.

    Args:
        work: The folder of the journal and the array; it is there.
        stamps: One for each row (`stamp_of`).
        shape: Of the whole array, (rows, ...).
        dtype: Of the array.
        recipe: As JSON; with another one than before all begins anew.

    Attributes:
        array: The array file.
        done: Row to facts, of the rows that are done.

    Raises:
        DataError: If the disk has no room for the array.
    """

    def __init__(
        self, work: Path, stamps: Sequence[str], shape: Sequence[int], dtype: np.dtype, recipe: dict[str, Any]
    ) -> None:
        self.array = work / ARRAY
        self.done: dict[int, dict[str, Any]] = {}
        self._path, self._stamps = work / "journal.jsonl", stamps
        head = {"version": _VERSION, "shape": list(shape), "dtype": dtype.str, "recipe": recipe}
        self._head = json.loads(json.dumps(head))
        if not self._read():
            self._path.unlink(missing_ok=True)
            with writing(), new_array(self.array, shape, dtype):
                self._path.write_text(json.dumps(self._head) + "\n", encoding="utf-8")
        self._waiting: list[str] = []
        self._written = time.monotonic()

    def add(self, row: int, facts: dict[str, Any]) -> None:
        """Note that a row is done."""
        self.done[row] = facts
        self._waiting.append(json.dumps({"row": row, "stamp": self._stamps[row], "facts": facts}))
        if time.monotonic() - self._written >= EVERY_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Bring rows to the disk, then their lines.

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

    def _read(self) -> bool:
        """Read an earlier journal; whether it was one of the same recipe, and its array is whole."""
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
        if not line_ended(self._path):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")
        return True


def line_ended(path: Path) -> bool:
    """Whether the last line of a text file that is not empty is whole."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
