"""Read a map of ABIDE, and describe maps that are missing or can't be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.map_files import read_map
from medfl.data.readers.volumes import SpatialGrid
from medfl.data.table import row_list

MAX_UNREADABLE_SHARE = 0.05
"""Largest share of unreadable maps among the existing ones; above it nothing is written."""

NO_MAP = "there is no map"
"""Exclusion reason of a subject and a derivative."""

MapFailures = Mapping[tuple[int, str], str]
"""Maps table row and derivative of each excluded map to the reason."""


def read_one_map(path: Path, grid: SpatialGrid) -> LoadedItem:
    """Read a map; see `medfl.data.readers.map_files.read_map`."""
    return LoadedItem(read_map(path, grid))


def too_many_unreadable(failed: MapFailures, maps: int) -> str | None:
    """Return the error message if more than `MAX_UNREADABLE_SHARE` of the maps can't be read, otherwise None.

    Args:
        failed: Maps that can't be read.
        maps: Number of maps that exist.
    """
    if len(failed) <= MAX_UNREADABLE_SHARE * maps:
        return None
    return (
        f"{len(failed)} of {maps} maps that were found can't be read, which is more than {MAX_UNREADABLE_SHARE:.0%}: "
        f"{describe_failures(failed)}. Download these files again; one that is deleted counts as missing."
    )


def describe_failures(failures: MapFailures) -> str:
    """Describe the reasons with their derivatives and table rows."""
    groups = defaultdict(list)
    for (row, derivative), reason in failures.items():
        groups[reason, derivative].append(row)
    return "; ".join(f"{reason} ({derivative}: {row_list(rows)})" for (reason, derivative), rows in groups.items())
