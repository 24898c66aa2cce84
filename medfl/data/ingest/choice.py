"""What is read for a data set, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from medfl.data.table import row_list
from medfl.ingest.pipeline import QUARANTINE, Ingested
from medfl.ingest.workers import LoadedItem
from medfl.records.datalist import Exclusion


@dataclass
class Choice:
    """What is read for a data set, and what is left out.

    Each image of the release has a place: first come, first numbered.

    Attributes:
        items: What is read, one for each row of the array; see `medfl.ingest.pipeline.ingest`.
        places: For each of the items its place.
        files: The files of an item.
        load: Reads one of the items in a worker process, so it must be importable.
        shape: Of a row of the array.
        recipe: Whatever decides the pixels of all items, as JSON.
        cells: What ``quarantine.csv`` says of a place, under `columns`; nothing that identifies a patient.
        columns: Names of these cells.
        missing: Place to reason, of what is not read.
        unlisted: Reasons that are counted, but not listed in ``quarantine.csv``.
        dtype: Of the array.
        release: What else `medfl.ingest.spec.ImageSpec.datalist` needs to know.
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
        """How many images there are, those that are not read included."""
        return len(self.items) + len(self.missing)


@dataclass(frozen=True)
class Outcome:
    """What became of all images.

    Attributes:
        choice: What was to be read.
        kept: For each row of the array its place.
        facts: For each row of the array what `medfl.ingest.workers.LoadedItem.facts` said.
        reasons: Place to reason, of what is left out: first what is missing, then what can't be read.
        dropped: Place to reason, of what was read and does not stay, see `medfl.ingest.spec.ImageSpec.drop`.
    """

    choice: Choice
    kept: list[int]
    facts: list[dict[str, Any]]
    reasons: dict[int, str]
    dropped: dict[int, str] = field(default_factory=dict)

    def without(self, rows: Mapping[int, str]) -> Outcome:
        """The same after rows were taken out of the array, with their reasons."""
        stay = [row for row in range(len(self.kept)) if row not in rows]
        return replace(
            self,
            kept=[self.kept[row] for row in stay],
            facts=[self.facts[row] for row in stay],
            dropped={self.kept[row]: reason for row, reason in rows.items()},
        )


def as_outcome(choice: Choice, done: Ingested | None = None) -> Outcome:
    """What became of all images, by their places; before anything is read without `done`."""
    if done is None:
        return Outcome(choice, [], [], dict(choice.missing))
    return Outcome(
        choice,
        [choice.places[number] for number in done.kept],
        [done.facts[number] for number in done.kept],
        choice.missing | {choice.places[number]: done.failed[number] for number in sorted(done.failed)},
    )


def exclusions(reasons: Mapping[str, int]) -> tuple[Exclusion, ...]:
    """Return an exclusion for each reason that holds for any image.

    Args:
        reasons: Maps each reason to its number of images.
    """
    return tuple(Exclusion(reason=reason, count=count) for reason, count in reasons.items() if count)


def rows_to_mend(reasons: Mapping[int, str], count: int, row_of: Callable[[int], int]) -> str:
    """What to say of images that can't be read, each a row of a table, where that stops the work.

    Args:
        reasons: Place to reason, of those that can't be read.
        count: How many images there are.
        row_of: The row of a place in the table.
    """
    rows: dict[str, list[int]] = {}
    for place, reason in reasons.items():
        rows.setdefault(reason, []).append(row_of(place))
    described = "; ".join(
        f"{len(numbers)} x {reason.rstrip('.')} ({row_list(numbers)})"
        for reason, numbers in sorted(rows.items(), key=lambda entry: -len(entry[1]))
    )
    return (
        f"{len(reasons)} of {count} images can't be read: {described}. Mend these files, or leave them out with "
        f"--skip-unreadable; {QUARANTINE} then lists them."
    )
