"""Group images into units: images that must stay together when a data set is split.

A record is the entry of one image in a data list; a column is a key of the records, such as ``site``.

All images of a patient and all identical images form one unit; most units are a single image. Units are numbered in the
order of their first image, so without groups unit i is image i.
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
    """Group images that share a key, directly or through other images (connected components).

    Args:
        keys: One sequence for each kind of key, with the hashable key of each image, length n. Images with an equal key
            of one kind are grouped; None never matches.

    Returns:
        Unit number of each image, shape (n,), int64, from 0 without gaps.

    >>> find_units(["anna", "bert", "anna", None], ["x", "y", "z", "y"]).tolist()
    [0, 1, 0, 1]
    """
    parent = list(range(len(keys[0])))
    for kind in keys:
        first: dict[Any, int] = {}
        for image, key in enumerate(kind):
            if key is not None:
                root, other = _find_root(parent, first.setdefault(key, image)), _find_root(parent, image)
                parent[max(root, other)] = min(root, other)
    roots = np.array([_find_root(parent, image) for image in range(len(parent))], dtype=np.int64)
    units: np.ndarray = np.unique(roots, return_inverse=True)[1].astype(np.int64)
    return units


def majority_by_unit(units: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the most frequent value in each unit; ties go to the smallest value.

    Args:
        units: Unit of each image, shape (n,), from 0 without gaps.
        values: Sortable value of each image, for example its label, shape (n,).

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
    """Return the labels of each record as a Boolean array if the objective allows several labels per case.

    Args:
        source: Data list.
        records: Records of the list.
        place: Name of the data, for messages.

    Returns:
        Array of shape (n, C), bool; None if each record has one label, so that `Datalist.strata` describes it.

    Raises:
        DataError: If a record has no target.
    """
    if source.goal.has_class_labels or source.mask_array:
        return None
    sets = source.goal.label_sets(record_targets(records, source.goal, place))
    return None if sets is None else np.asarray(sets)


def union_by_unit(units: np.ndarray, sets: np.ndarray) -> np.ndarray:
    """Return the union of the labels of all images of each unit.

    Args:
        units: Unit of each image, shape (n,), from 0 without gaps.
        sets: Labels of each image, shape (n, C), bool.

    Returns:
        Labels of each unit, shape (u, C), bool.
    """
    together = np.zeros((units.max(initial=-1) + 1, sets.shape[1]), dtype=bool)
    np.logical_or.at(together, units, sets)
    return together


def column_entries(records: Sequence[Mapping[str, object]], column: str) -> np.ndarray:
    """Return a column of a data list as strings.

    Args:
        records: Records of the images.
        column: Name of the column.

    Returns:
        One string for each image, shape (n,).

    Raises:
        DataError: If no record has the column, or an entry is missing (absent, null, blank or NaN).
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


def strata_by_columns(records: Sequence[Mapping[str, object]], columns: Sequence[str]) -> np.ndarray:
    """Assign a number to each combination of entries in some columns of a data list.

    Args:
        records: Records of the images.
        columns: Names of the columns, at least one.

    Returns:
        Number of each image's combination, shape (n,), int64, from 0. Equal numbers mean equal entries in all columns.

    Raises:
        DataError: As in `column_entries`.
    """
    entries = np.stack([np.unique(column_entries(records, column), return_inverse=True)[1] for column in columns])
    strata: np.ndarray = np.unique(entries, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return strata


def _find_root(parent: list[int], image: int) -> int:
    """Return the root of an image in a union-find forest; shorten its path in place."""
    while parent[image] != image:
        parent[image] = parent[parent[image]]
        image = parent[image]
    return image
