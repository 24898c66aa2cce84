"""How a map is read, and what is said of maps that are missing or can't be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.map_files import read_map
from medfl.data.readers.volumes import Grid
from medfl.data.table import row_list

MOST_UNREADABLE = 0.05
"""If more of the maps that are there can't be read, nothing is written."""

NO_MAP = "there is no map"
"""Said of a subject and a derivative."""

Failures = Mapping[tuple[int, str], str]
"""Table row and derivative to what is wrong."""


def read_one(path: Path, grid: Grid) -> LoadedItem:
    """Read a map; see `medfl.data.readers.map_files.read_map`."""
    return LoadedItem(read_map(path, grid))


def too_many(failed: Failures, maps: int) -> str | None:
    """What to say if too many of the maps that are there can't be read; None if they are not.

    Args:
        failed: They.
        maps: How many there are.
    """
    if len(failed) <= MOST_UNREADABLE * maps:
        return None
    return (
        f"{len(failed)} of {maps} maps that were found can't be read, which is more than {MOST_UNREADABLE:.0%}: "
        f"{described(failed)}. Download these files again; one that is deleted counts as missing."
    )


def described(failures: Failures) -> str:
    """What is wrong, with the derivatives and their table rows."""
    groups = defaultdict(list)
    for (row, derivative), reason in failures.items():
        groups[reason, derivative].append(row)
    return "; ".join(f"{reason} ({derivative}: {row_list(rows)})" for (reason, derivative), rows in groups.items())
