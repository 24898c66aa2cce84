"""Units: images that stay together when a data set is dealt.

All images of a patient, and all identical images, are one unit; most often a unit is one image. Units are numbered in
the order in which their first image comes, so that without groups unit i is image i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from medfl.data.datalists import Datalist, entry_text
from medfl.data.targets import record_targets
from medfl.errors import DataError, did_you_mean
from medfl.records.datalist import CaseRecord


def find_units(*keys: Sequence[Any]) -> np.ndarray:
    """Join images that have a key in common, directly or through others.

    Args:
        keys: For each kind of key, the key of each image, length n, hashable; images with an equal key of one kind are
            joined. None joins nothing.

    Returns:
        Number of the unit of each image, shape (n,), int64, from 0 without gaps.

    >>> find_units(["anna", "bert", "anna", None], ["x", "y", "z", "y"]).tolist()
    [0, 1, 0, 1]
    """
    parent = list(range(len(keys[0])))
    for kind in keys:
        first: dict[Any, int] = {}
        for image, key in enumerate(kind):
            if key is not None:
                root, other = _root(parent, first.setdefault(key, image)), _root(parent, image)
                parent[max(root, other)] = min(root, other)
    roots = np.array([_root(parent, image) for image in range(len(parent))], dtype=np.int64)
    units: np.ndarray = np.unique(roots, return_inverse=True)[1].astype(np.int64)
    return units


def majority(units: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The most frequent value in each unit; of several, the smallest.

    Args:
        units: Unit of each image, shape (n,), from 0 without gaps.
        values: Something of each image that can be sorted, for example its label, shape (n,).

    Returns:
        One value for each unit, shape (u,).
    """
    kinds, codes = np.unique(values, return_inverse=True)
    pairs, counts = np.unique(units * len(kinds) + codes, return_counts=True)
    owners, codes = np.divmod(pairs, max(len(kinds), 1))
    order = np.lexsort((codes, -counts, owners))
    _, first = np.unique(owners[order], return_index=True)
    chosen: np.ndarray = kinds[codes[order][first]]
    return chosen


def label_sets(source: Datalist, records: list[CaseRecord], place: str) -> np.ndarray | None:
    """Which of several labels each record has.

    Args:
        source: The data list.
        records: Of it.
        place: Where they stand, for messages.

    Returns:
        (n, C), bool; None where a record has one label, and `Datalist.strata` say all.

    Raises:
        DataError: If a record has no target.
    """
    if source.goal.has_class_labels or source.mask_array:
        return None
    sets = source.goal.label_sets(record_targets(records, source.goal, place))
    return None if sets is None else np.asarray(sets)


def any_of(units: np.ndarray, sets: np.ndarray) -> np.ndarray:
    """What any image of a unit has.

    Args:
        units: Unit of each image, shape (n,), from 0 without gaps.
        sets: Which of several labels each image has, shape (n, C), bool.

    Returns:
        The same for each unit, shape (u, C).
    """
    together = np.zeros((units.max(initial=-1) + 1, sets.shape[1]), dtype=bool)
    np.logical_or.at(together, units, sets)
    return together


def column_of(records: Sequence[Mapping[str, object]], column: str) -> np.ndarray:
    """A column of a data list, as strings.

    Args:
        records: The images.
        column: Its name.

    Returns:
        One string for each image, shape (n,).

    Raises:
        DataError: If no image has the column, or the entry of some is missing (absent, null, blank, or not a number).
    """
    values = np.array([entry_text(record, column) or "" for record in records], dtype=str)
    missing = int((values == "").sum())
    if not missing:
        return values
    if not any(column in record for record in records):
        known = sorted({key for record in records for key in record} - {"image"})
        raise DataError(
            "missing_column",
            f"the pooled data set has no column '{column}'. {did_you_mean(column, known)}",
            column=column,
        )
    raise DataError(
        "missing_value",
        f"the column '{column}' is missing for {missing} of {len(records)} images. Fill it in when you prepare the "
        "data set, or leave these images out.",
        column=column,
        count=missing,
        total=len(records),
    )


def strata_of(records: Sequence[Mapping[str, object]], columns: Sequence[str]) -> np.ndarray:
    """Number the combinations of entries that some columns of a data list have.

    Args:
        records: The images.
        columns: Their names, at least one.

    Returns:
        A number from 0 for each image, shape (n,), int64: equal where all entries are.

    Raises:
        DataError: As `column_of` does.
    """
    entries = np.stack([np.unique(column_of(records, column), return_inverse=True)[1] for column in columns])
    strata: np.ndarray = np.unique(entries, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return strata


def _root(parent: list[int], image: int) -> int:
    while parent[image] != image:
        parent[image] = parent[parent[image]]
        image = parent[image]
    return image
