"""Read many image files into one array: in parallel, resumable, excluding unreadable files with a reason.

A data set defines its items and a function that reads one of them; this module does the rest:

    done = ingest(
        images, load, lambda image: [image.path], folder / "images.npy", (512, 512), np.uint16,
        work=work_folder(out), recipe={"data set": "mias", "size": 512}, say=say,
    )
    records = [... for row, place in enumerate(done.kept)]       # row of the array, place in `images`
    write_quarantine(folder / QUARANTINE, ("image", "reason"), [... for place, reason in done.failed.items()])

- Worker processes read the items and write their rows directly into the array file. So `load` must be importable (a
  function of a module, or a `functools.partial` of one), and items must be picklable.
- The needed disk space and memory are reported first. No process holds more than the items it is reading.
- Finished rows are recorded in a journal in the work folder every few seconds. After an interruption of any kind, the
  same call resumes; a changed file, item or recipe is read again. The work folder is removed at the end.
- A file that can't be read (`load` raises `DataError`) is excluded with its reason, and so is a file whose decoder
  crashes its process. Any other error stops the ingestion.

The journal contains hashes, but no file names. It also contains `LoadedItem.facts`: neither these nor the text of a
`DataError` may identify a patient.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from medfl.data.folders import real_path
from medfl.data.ingest.array_file import keep_rows, report_space_needed
from medfl.data.ingest.checkpoint import ARRAY_FILE, Checkpoint, item_stamp
from medfl.data.ingest.workers import LoadedItem, read_all
from medfl.errors import DataError, SettingsError
from medfl.utils.locks import LOCK_FILE, hold_lock
from medfl.utils.processes import core_count
from medfl.utils.progress import progress
from medfl.utils.text import Say

QUARANTINE = "quarantine.csv"
"""File name of the list of excluded images with reasons; it is written only if there are any."""


T = TypeVar("T")
"""Type of the items that an ingestion reads."""


@dataclass(frozen=True)
class Ingested:
    """Result of an ingestion.

    Attributes:
        kept: For each row of the array, the position of its item in the list of items; ascending.
        failed: Maps the position of each excluded item to the reason.
        facts: Maps the position of each kept item to the metadata that `load` returned with its pixels.
    """

    kept: list[int]
    failed: dict[int, str]
    facts: dict[int, dict[str, Any]]


def work_folder(out: Path) -> Path:
    """Return the folder next to `out` that stores an interrupted ingestion."""
    out = real_path(out)
    return out.parent / f".{out.name}.unfinished"


def ingest(
    items: Sequence[T],
    load: Callable[[T], LoadedItem],
    files: Callable[[T], Sequence[Path]],
    target: Path,
    shape: Sequence[int],
    dtype: DTypeLike,
    *,
    work: Path,
    recipe: Mapping[str, Any],
    workers: int | None = None,
    what: str = "images",
    say: Say = lambda _: None,
) -> Ingested:
    """Read items into an array file with one row for each readable item, in the order of the items.

    Args:
        items: Items to read, one for each row; picklable, with a ``repr`` that contains everything that decides the
            pixels.
        load: Function that reads an item in a worker process.
        files: Function that returns the files of an item. If one changes after an interruption, the item is read again.
        target: The ``.npy`` file to write, on the disk of `work`.
        shape: Shape of one row, for example (H, W).
        dtype: Data type of the array.
        work: Folder for unfinished work; see `work_folder`.
        recipe: Settings that decide the pixels of all items (size, options), as JSON. If they change, all items are
            read again.
        workers: Number of processes, >= 1; None starts one for each core. With 1, this process reads all items.
        what: Name of the items, for messages.
        say: Receives progress and warnings, one line each.

    Raises:
        DataError: If another process works in the same folder, or the disk is full.
        SettingsError: If `workers` is below 1, or worker processes can't be started.
    """
    workers = core_count() if workers is None else workers
    if workers < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected 1 worker process or more, got {workers}",
            setting="workers",
            minimum=1,
            found=workers,
        )
    _make_work_folder(work)
    with hold_lock(work / LOCK_FILE) as is_locked:
        if not is_locked:
            raise DataError(
                "folder_in_use",
                f"another process prepares the same data set in {work}. Wait until it ends, or give another --out.",
                path=work,
            )
        whole = (len(items), *shape)
        report_space_needed(work / ARRAY_FILE, whole, dtype, workers, say)
        stamps = [item_stamp(item, files(item)) for item in items]
        journal = Checkpoint(work, stamps, whole, np.dtype(dtype), dict(recipe))
        failed = _read_pending(journal, items, load, workers, what, say)
        kept = sorted(journal.done)
        os.replace(journal.array, target)  # after this point an interrupted call can't be resumed
        if failed:
            keep_rows(target, kept)
        shutil.rmtree(work, ignore_errors=True)
    return Ingested(kept, failed, {place: journal.done[place] for place in kept})


def write_quarantine(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> None:
    """Write the list of excluded images as CSV.

    Args:
        path: File to write.
        columns: Column names; no column may identify a patient.
        rows: One row for each excluded image, with a cell for each of `columns`.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def _make_work_folder(work: Path) -> None:
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            "unwritable_folder",
            f"could not write to the folder {work.parent}: {error.strerror}. Give another --out.",
            path=work.parent,
            reason=error.strerror,
        ) from None


def _read_pending(
    journal: Checkpoint, items: Sequence[T], load: Callable[[T], LoadedItem], workers: int, what: str, say: Say
) -> dict[int, str]:
    """Read the items that are not in the journal yet; return the position and reason of each unreadable item."""
    failed: dict[int, str] = {}
    before = len(journal.done)
    if before:
        say(f"note: an earlier call was interrupted: {before} of {len(items)} {what} are done, the rest follows")
    todo = [place for place in range(len(items)) if place not in journal.done]
    try:
        with progress("reading", len(items), what, say) as show:
            for read in read_all(load, items, todo, journal.array, workers):
                if read.reason is None:
                    journal.add(read.place, read.facts)
                else:
                    failed[read.place] = read.reason
                show(len(journal.done) + len(failed))
    finally:
        journal.flush()
    return failed
