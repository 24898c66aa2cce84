"""The targets that the records of a data list hold."""

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

TARGET: Final = "target"
"""Key of a record: a number, or a list of numbers, where a case is of no class; null is a number that nobody knows."""


STRUCTURES = "structures"
"""Key of a list with masks: the names of what they show, by their numbers."""

TARGET_NAMES = "target_names"
"""Key of a list of findings or numbers to predict: the name of each, in the order of a record's target."""

IN_MASK: Final = "in_mask"
"""Key of a record: the numbers of the structures that its mask holds, so that nobody must read it to know."""


def record_targets(records: Sequence[CaseRecord], objective: Objective, place: str) -> torch.Tensor:
    """The targets of records, as the objective wants them; not those in arrays, such as masks.

    Args:
        records: Of a split.
        objective: What is learned.
        place: Where they stand, for messages.

    Returns:
        (n, *target shape), with `Objective.target_type`.

    Raises:
        DataError: If a record has no target, or another one than the objective takes.
    """
    import torch  # it takes seconds, and who prepares images needs none of it

    if objective.has_class_labels:
        return torch.from_numpy(integers(records, "label", place))
    (size,) = objective.target_shape(())
    targets = torch.empty(len(records), size, dtype=objective.target_type)
    for number, record in enumerate(records):
        value = record.get(TARGET) if isinstance(record, dict) else None
        values = value if isinstance(value, list) else [value]
        if TARGET not in record or len(values) != size or not all(map(_is_number, values)):
            got = f"{len(values)} of them" if TARGET in record and len(values) != size else "none or another thing"
            raise DataError(
                "invalid_target",
                f"expected {size} numbers in '{TARGET}' of record {number} of {place}, for the objective "
                f"'{objective.name}', got {got}. Correct the list.",
                where=place,
                record=number,
                objective=objective.name,
                expected=size,
            )
        targets[number] = torch.tensor([float("nan") if entry is None else entry for entry in values])
    objective.check_targets(targets, place)
    return targets


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30)


def integers(records: Sequence[CaseRecord], key: Literal["image", "label"], place: str) -> np.ndarray:
    """The integers under a key of all records."""
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
                    "image_file_in_list", files_message(f"record {number} of {place}"), where=place, record=number
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


def files_message(where: str) -> str:
    """What to say of a list that names files of images."""
    return (
        f"expected a row of the image array in 'image', got the path of a file: {where}. Lists of image files are not "
        "read: `medfl prep folder` turns image files and a table of labels into one array and a list."
    )


def list_objective(values: dict[str, Any], path: Path) -> Objective:
    """The objective of a list.

    Raises:
        DataError: If there is no such one.
    """
    from medfl.objectives import read_objective

    try:
        return read_objective(values["objective"])
    except (PluginError, SettingsError, TypeError, ValueError) as error:
        raise DataError(
            "invalid_objective", f"the entry 'objective' of {path} can't be read: {error} Correct the list.", path=path
        ) from None
