"""Read an fMRI map of ABIDE, and describe maps that are missing or can't be read.

A map is a volume with one value for each brain voxel. Each subject has a map of each derivative (kind of map).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.volumes import SpatialGrid
from medfl.data.table import row_list
from medfl_datasets.abide.map_files import read_map

MAX_UNREADABLE_SHARE = 0.05
"""Largest share of unreadable maps among the maps to read; above it nothing is written."""

NO_MAP = "there is no map"
"""Exclusion reason of a map: the release has no file for this subject and derivative."""

MapFailures = Mapping[tuple[int, str], str]
"""Type of a mapping from (table row of the subject, derivative) of each excluded map to the reason."""


def read_one_map(path: Path, grid: SpatialGrid) -> LoadedItem:
    """Read the map in a NIfTI file, normalise its brain voxels, and resample it to a grid.

    Args:
        path: A ``.nii`` or ``.nii.gz`` file.
        grid: Target grid.

    Returns:
        Voxels of the grid's shape, float32; `medfl_datasets.abide.map_files.read_map` describes them.
    """
    return LoadedItem(read_map(path, grid))


def too_many_unreadable(failed: MapFailures, maps: int) -> str | None:
    """Return the error message if more than `MAX_UNREADABLE_SHARE` of the maps can't be read, otherwise None.

    Args:
        failed: Maps that can't be read, with the reasons.
        maps: Number of maps to read.
    """
    if len(failed) <= MAX_UNREADABLE_SHARE * maps:
        return None
    return (
        f"{len(failed)} of {maps} maps that were found can't be read, which is more than {MAX_UNREADABLE_SHARE:.0%}: "
        f"{describe_failures(failed)}. Download these files again; one that is deleted counts as missing."
    )


def describe_failures(failures: MapFailures) -> str:
    """Describe excluded maps for a message: each reason with the derivatives and table rows that it concerns."""
    groups = defaultdict(list)
    for (row, derivative), reason in failures.items():
        groups[reason, derivative].append(row)
    return "; ".join(f"{reason} ({derivative}: {row_list(rows)})" for (reason, derivative), rows in groups.items())
