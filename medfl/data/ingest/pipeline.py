"""Read many image files into one array: over all cores, resumable, with bad files left out and named.

A data set says what its items are and how one is read; this module does the rest::

    done = ingest(
        images, load, lambda image: [image.path], folder / "images.npy", (512, 512), np.uint16,
        work=work_folder(out), recipe={"data set": "mias", "size": 512}, say=say,
    )
    records = [... for row, place in enumerate(done.kept)]       # row of the array, place in `images`
    write_quarantine(folder / QUARANTINE, ("image", "reason"), [... for place, reason in done.failed.items()])

- Items are read in processes of their own, which write their rows straight into the array file. So `load` must be
  importable (a function of a module, or a `functools.partial` of one), and items must be picklable.
- What disk and memory that needs is said first. No process holds more than what it reads at the moment.
- What is read is noted in a journal in the work folder every few seconds. After an interruption, however hard, the same
  call goes on where it stopped; a changed file, item or recipe is read anew. The work folder is removed at the end.
- A file that can't be read (`load` raises `DataError`) is left out with its reason; one whose decoder ends its process
  is, too. Any other error stops the work.

The journal holds hashes, no names of files. What `load` reports in `LoadedItem.facts` is kept in it: nothing that
identifies a patient belongs there, nor into the text of a `DataError`.
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

from medfl.errors import DataError, SettingsError
from medfl.ingest.array_file import keep_rows, tell_need
from medfl.ingest.checkpoint import ARRAY, Checkpoint, stamp_of
from medfl.ingest.workers import LoadedItem, read_all
from medfl.utils.locks import LOCK, held
from medfl.utils.progress import progress
from medfl.utils.text import Say

QUARANTINE = "quarantine.csv"
"""The list of what was left out, with reasons; it is written only if there is anything."""


T = TypeVar("T")


@dataclass(frozen=True)
class Ingested:
    """What became of all items.

    Attributes:
        kept: For each row of the array its place in the items; ascending.
        failed: Place in the items to the reason why it was left out.
        facts: Place in the items to `LoadedItem.facts`, for those that were kept.
    """

    kept: list[int]
    failed: dict[int, str]
    facts: dict[int, dict[str, Any]]


def work_folder(out: Path) -> Path:
    """The folder beside `out` where an interrupted ingestion waits to go on."""
    out = out.resolve()
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
    """Read all items into an array file with a row for each that can be read, in the order of the items.

    Args:
        items: What is to be read, one for each row; picklable, with a ``repr`` that tells all that decides the pixels.
        load: Reads one of them, in a worker process.
        files: The files of an item; if one changes after an interruption, the item is read again.
        target: The ``.npy`` file to write, on the disk of `work`.
        shape: Of a row, for example (H, W).
        dtype: Of the array.
        work: The folder for what is not finished; see `work_folder`.
        recipe: Whatever decides the pixels of all items (size, options), as JSON. With another one all is read anew.
        workers: Processes, >= 1; None means one for each core. With 1 all is read in this process.
        what: What is counted, for messages.
        say: Gets progress and warnings, a line each.

    Returns:
        What was kept and what was left out.

    Raises:
        DataError: If another process works in the same folder, or the disk is full.
        SettingsError: If the number of workers is impossible, or worker processes can't be started.
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
    _make(work)
    with held(work / LOCK) as mine:
        if not mine:
            raise DataError(
                "folder_in_use",
                f"another process prepares the same data set in {work}. Wait until it ends, or give another --out.",
                path=work,
            )
        whole = (len(items), *shape)
        tell_need(work / ARRAY, whole, dtype, workers, say)
        stamps = [stamp_of(item, files(item)) for item in items]
        journal = Checkpoint(work, stamps, whole, np.dtype(dtype), dict(recipe))
        failed = _fill(journal, items, load, workers, what, say)
        kept = sorted(journal.done)
        os.replace(journal.array, target)  # from here on an interruption means to begin anew
        if failed:
            keep_rows(target, kept)
        shutil.rmtree(work, ignore_errors=True)
    return Ingested(kept, failed, {place: journal.done[place] for place in kept})


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_quarantine(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> None:
    """List what was left out as CSV.

    Args:
        path: The file to write.
        columns: Names; nothing that identifies a patient may be in any.
        rows: One for each thing that was left out, of the length of `columns`.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def _make(work: Path) -> None:
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            "unwritable_folder",
            f"could not write to the folder {work.parent}: {error.strerror}. Give another --out.",
            path=work.parent,
            reason=error.strerror,
        ) from None


def _fill(
    journal: Checkpoint, items: Sequence[T], load: Callable[[T], LoadedItem], workers: int, what: str, say: Say
) -> dict[int, str]:
    """Read what is not done yet; place to reason of what can't be read."""
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
