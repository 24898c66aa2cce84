"""Plan of the images to read for a data set, and the outcome of reading them.

A release is the set of files that a data set's publisher distributes. ``quarantine.csv`` lists the images that were
excluded because they can't be read, with reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from medfl.data.ingest.pipeline import QUARANTINE, Ingested
from medfl.data.ingest.workers import LoadedItem
from medfl.data.table import row_list
from medfl.records.datalist import Exclusion


@dataclass
class ReadPlan:
    """Plan of the images of a data set that are read, and of the images that are left out.

    Each image of the release has a place: its number in the order in which the release lists the images.

    Attributes:
        items: Items to read, one for each row of the array; see `medfl.data.ingest.pipeline.ingest`.
        places: Place of each item.
        files: Function that returns the files of an item.
        load: Function that reads an item in a worker process, so it must be importable.
        shape: Shape of one row of the array.
        recipe: Settings that decide the pixels of all items, as JSON.
        cells: Function that returns the cells of a place in ``quarantine.csv``, under `columns`. Nothing in them may
            identify a patient.
        columns: Names of the columns of ``quarantine.csv`` before the column with the reason.
        missing: Maps the place of each image that is not read to the reason.
        unlisted: Reasons that are counted but not listed in ``quarantine.csv``.
        dtype: Data type of the array.
        release: Further data for `medfl.data.ingest.spec.ImageSpec.datalist`, of a type that the data set chooses.
    """

    items: Sequence[Any]
    places: Sequence[int]
    files: Callable[[Any], Sequence[Path]]
    load: Callable[[Any], LoadedItem]
    shape: tuple[int, ...]
    recipe: Mapping[str, Any]
    cells: Callable[[int], tuple[str | int, ...]]
    columns: tuple[str, ...]
    missing: dict[int, str] = field(default_factory=dict)
    unlisted: frozenset[str] = frozenset()
    dtype: DTypeLike = np.uint8
    release: Any = None

    def count(self) -> int:
        """Return the number of images, including images that are not read."""
        return len(self.items) + len(self.missing)


@dataclass(frozen=True)
class ReadOutcome:
    """Result of reading the images of a plan.

    Attributes:
        plan: Plan that was carried out.
        kept: For each row of the array, the place of its image.
        facts: Metadata of each row of the array, from `medfl.data.ingest.workers.LoadedItem.facts`.
        reasons: Maps the place of each excluded image to the reason: first the images that were not read, then those
            that can't be read.
        dropped: Maps the place of each image that was read and then removed to the reason, see
            `medfl.data.ingest.spec.ImageSpec.rows_to_drop`.
    """

    plan: ReadPlan
    kept: list[int]
    facts: list[dict[str, Any]]
    reasons: dict[int, str]
    dropped: dict[int, str] = field(default_factory=dict)

    def without(self, rows: Mapping[int, str]) -> ReadOutcome:
        """Return the outcome after rows were removed from the array.

        Args:
            rows: Maps each removed row to the reason.
        """
        stay = [row for row in range(len(self.kept)) if row not in rows]
        return replace(
            self,
            kept=[self.kept[row] for row in stay],
            facts=[self.facts[row] for row in stay],
            dropped={self.kept[row]: reason for row, reason in rows.items()},
        )


def make_outcome(plan: ReadPlan, done: Ingested | None = None) -> ReadOutcome:
    """Return the outcome of a plan, keyed by place.

    Args:
        plan: The plan.
        done: Result of the ingestion; None before anything is read.
    """
    if done is None:
        return ReadOutcome(plan, [], [], dict(plan.missing))
    return ReadOutcome(
        plan,
        [plan.places[number] for number in done.kept],
        [done.facts[number] for number in done.kept],
        plan.missing | {plan.places[number]: done.failed[number] for number in sorted(done.failed)},
    )


def exclusions(reasons: Mapping[str, int]) -> tuple[Exclusion, ...]:
    """Return an exclusion, a record of a reason and its number of images, for each reason with at least one image.

    Args:
        reasons: Maps each reason to its number of images.
    """
    return tuple(Exclusion(reason=reason, count=count) for reason, count in reasons.items() if count)


def unreadable_rows_message(reasons: Mapping[int, str], count: int, row_of: Callable[[int], int]) -> str:
    """Return the error message for images that can't be read, listed by reason with their table rows.

    Args:
        reasons: Maps the place of each unreadable image to the reason.
        count: Number of images in total.
        row_of: Function that returns the table row of a place.
    """
    rows: dict[str, list[int]] = {}
    for place, reason in reasons.items():
        rows.setdefault(reason, []).append(row_of(place))
    described = "; ".join(
        f"{len(numbers)} x {reason.rstrip('.')} ({row_list(numbers)})"
        for reason, numbers in sorted(rows.items(), key=lambda entry: -len(entry[1]))
    )
    return (
        f"{len(reasons)} of {count} images can't be read: {described}. Repair these files, or leave them out with "
        f"--skip-unreadable; {QUARANTINE} then lists them."
    )
