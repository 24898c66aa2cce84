"""The maps of all subjects into one array, and what becomes of those that are missing or can't be read."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from medfl.data.readers.map_files import read_map
from medfl.data.readers.quiet import quiet_decoders
from medfl.data.readers.volumes import Grid
from medfl.data.table import row_list
from medfl.errors import DataError
from medfl.ingest.array_file import new_array, tell_need
from medfl.utils.progress import progress
from medfl.utils.text import Say
from medfl_datasets.abide.tables import Subject

MOST_UNREADABLE = 0.05
"""If more of the maps that are there can't be read, nothing is written."""

NO_MAP = "there is no map"
"""Said of a subject and a derivative."""

Files = Mapping[tuple[str, str], Path]
"""The beginning of a subject's file names, and a derivative, to a file."""

Failures = dict[tuple[int, str], str]
"""Table row and derivative to what is wrong."""


def write_images(
    target: Path, subjects: Sequence[Subject], files: Files, channels: Sequence[str], grid: Grid, say: Say
) -> Failures:
    """Write an array with a row for each subject, in several threads.

    Args:
        target: The ``.npy`` file to write, of shape (subjects, *grid, channels), float32.
        subjects: In the order of the rows; each has a file for each channel.
        files: The maps.
        channels: A derivative for each channel.
        grid: Where the voxels lie.
        say: Gets plain lines about progress.

    Returns:
        The maps that can't be read; the rows of their subjects are of no use.
    """
    failed: Failures = {}
    shape = (len(subjects), *grid.shape, len(channels))
    tell_need(target, shape, np.float32, 1, say)
    with new_array(target, shape, np.float32) as array:

        def read(row: int) -> Failures:
            failed: Failures = {}
            maps = np.zeros((*grid.shape, len(channels)), np.float32)
            for channel, derivative in enumerate(channels):
                try:
                    maps[..., channel] = read_map(files[subjects[row].file_id, derivative], grid)
                except DataError as error:
                    failed[subjects[row].row, derivative] = str(error)
            array.write(row, maps)
            return failed

        threads = ThreadPoolExecutor(os.cpu_count() or 1)
        try:
            with quiet_decoders(), progress("reading", len(subjects) * len(channels), "maps", say) as show:
                for done, found in enumerate(threads.map(read, range(len(subjects))), 1):
                    failed |= found
                    show(done * len(channels))
        finally:
            threads.shutdown(cancel_futures=True)
        array.flush()
    return failed


def check_failures(failed: Failures, maps: int, require_complete: bool) -> None:
    """Refuse too many maps that can't be read.

    Args:
        failed: They.
        maps: How many were read.
        require_complete: Whether one is too many.

    Raises:
        DataError: If there are too many; it names their rows and derivatives.
    """
    if len(failed) > MOST_UNREADABLE * maps:
        raise DataError(
            f"{len(failed)} of {maps} maps that were found can't be read, which is more than {MOST_UNREADABLE:.0%}: "
            f"{told(failed)}. Download these files again; one that is deleted counts as missing."
        )
    if failed and require_complete:
        raise DataError(f"a complete set of maps is required, {len(failed)} can't be read: {told(failed)}.")


def write_quarantine(path: Path, failures: Failures, say: Say) -> None:
    """List what is missing or can't be read as CSV, and say so; nothing is written if nothing is."""
    if not failures:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("table_row", "derivative", "reason"))
        writer.writerows((row, derivative, reason) for (row, derivative), reason in sorted(failures.items()))
    rows = {row for row, _ in failures}
    unreadable = {key: reason for key, reason in failures.items() if reason != NO_MAP}
    if unreadable:
        say(f"warning: {len(unreadable)} maps can't be read: {told(unreadable)}")
    say(f"warning: {len(rows)} subjects without all maps were left out: see {path.name}")


def told(failures: Failures) -> str:
    """What is wrong, with the derivatives and their table rows."""
    groups = defaultdict(list)
    for (row, derivative), reason in failures.items():
        groups[reason, derivative].append(row)
    return "; ".join(f"{reason} ({derivative}: {row_list(rows)})" for (reason, derivative), rows in groups.items())
