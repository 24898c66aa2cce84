"""Read and check the training targets in the records of a data list. A record is the entry of one case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from medfl.errors import DataError, PluginError, SettingsError
from medfl.records.datalist import CaseRecord

if TYPE_CHECKING:
    import torch

    from medfl.objectives import Objective

TARGET_KEY: Final = "target"
"""Record key of a case's target if cases have no class label.

The value is a number or a list of numbers; null marks a missing number.
"""


STRUCTURES_KEY = "structures"
"""Data list key of the names of the segmented structures, ordered by their numbers in masks, from 0."""

TARGET_NAMES_KEY = "target_names"
"""Data list key of the names of the findings or predicted numbers, in the order of a record's target."""

MASK_STRUCTURES_KEY: Final = "in_mask"
"""Record key of the numbers of the structures that occur in the case's mask, so that the mask need not be opened."""


def record_targets(records: Sequence[CaseRecord], objective: Objective, place: str) -> torch.Tensor:
    """Return the targets of records as a tensor. Targets stored in arrays, such as masks, are not covered.

    Args:
        records: Records of a split.
        objective: Training objective of the task.
        place: Name of the split, for messages.

    Returns:
        Targets of shape (n, *target shape), of type `Objective.target_type`.

    Raises:
        DataError: If a record has no target, or a target that does not fit the objective.
    """
    import torch  # importing torch takes seconds, and preparing images does not need it

    if objective.has_class_labels:
        return torch.from_numpy(read_integers(records, "label", place))
    (size,) = objective.target_shape(())
    targets = torch.empty(len(records), size, dtype=objective.target_type)
    for number, record in enumerate(records):
        value = record.get(TARGET_KEY) if isinstance(record, dict) else None
        values = value if isinstance(value, list) else [value]
        if TARGET_KEY not in record or len(values) != size or not all(map(_is_target_number, values)):
            got = f"{len(values)} of them" if TARGET_KEY in record and len(values) != size else "none, or no numbers"
            raise DataError(
                "invalid_target",
                f"expected {size} numbers in '{TARGET_KEY}' of record {number} of {place}, for the objective "
                f"'{objective.name}', got {got}. Correct the list.",
                where=place,
                record=number,
                objective=objective.name,
                expected=size,
            )
        targets[number] = torch.tensor([float("nan") if entry is None else entry for entry in values])
    objective.check_targets(targets, place)
    return targets


def _is_target_number(value: Any) -> bool:
    """Return True for a missing value (None) and for a number of magnitude below 1e30; False for booleans."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30)


def read_integers(records: Sequence[CaseRecord], key: Literal["image", "label"], place: str) -> np.ndarray:
    """Return the integer stored under one key of each record, shape (n,), int64.

    Args:
        records: Records of a split.
        key: Key to read.
        place: Name of the split, for messages.

    Raises:
        DataError: If a record lacks the key, its value is not an integer, or it does not fit into 64 bits.
    """
    try:
        values = [record[key] for record in records]
    except (KeyError, TypeError):
        number = next(n for n, record in enumerate(records) if not isinstance(record, dict) or key not in record)
        raise DataError(
            "missing_value",
            f"record {number} of {place} has no '{key}'. Every record needs 'image' and 'label'.",
            where=place,
            record=number,
            key=key,
        ) from None
    for number, value in enumerate(values):
        if type(value) is not int:
            if key == "image" and isinstance(value, str):
                raise DataError(
                    "image_file_in_list", image_file_message(f"record {number} of {place}"), where=place, record=number
                )
            raise DataError(
                "wrong_type",
                f"expected an integer in '{key}' of record {number} of {place}, got {type(value).__name__}. "
                "Correct the list.",
                where=place,
                record=number,
                key=key,
                expected="int",
                found=type(value).__name__,
            )
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise DataError(
            "integer_overflow",
            f"expected integers of 64 bits in '{key}' of {place}, got a larger one. Correct the list.",
            where=place,
            key=key,
        ) from None


def image_file_message(where: str) -> str:
    """Return the error message for a data list that names image files instead of array rows."""
    return (
        f"expected a row of the image array in 'image', got the path of a file: {where}. Lists of image files are not "
        "read: `medfl prep folder` turns image files and a table of labels into one array and a list."
    )


def list_objective(values: dict[str, Any], path: Path) -> Objective:
    """Return the objective that a data list's entry ``objective`` describes.

    Args:
        values: Content of the data list; has the key ``objective``.
        path: Path of the data list, for messages.

    Raises:
        DataError: If the entry does not describe a known objective.
    """
    from medfl.objectives import read_objective

    try:
        return read_objective(values["objective"])
    except (PluginError, SettingsError, TypeError, ValueError) as error:
        raise DataError(
            "invalid_objective", f"the entry 'objective' of {path} can't be read: {error} Correct the list.", path=path
        ) from None
