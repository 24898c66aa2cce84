"""The targets of a split of a data list: labels, numbers, or rows of an array of masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from medfl.data.arrays import CHUNK_BYTES, ArrayMasks
from medfl.data.datalists import Datalist
from medfl.data.targets import STRUCTURES, TARGET_NAMES, integers, record_targets
from medfl.errors import DataError
from medfl.objectives import Objective
from medfl.utils.text import inert_name


def rows_and_targets(
    datalist: Datalist,
    split: str,
    where: str,
    objective: Objective,
    shape: Sequence[int],
    masks: np.ndarray | None = None,
) -> tuple[np.ndarray, torch.Tensor | ArrayMasks]:
    """Rows and targets of a split.

    Args:
        datalist: The list.
        split: Of it.
        where: What the list belongs to, for messages.
        objective: Of the task.
        shape: Of a case as networks get it.
        masks: The array of masks, (N, ...), with as many numbers in a row as a target has; None without any.

    Returns:
        (n,), int64, and (n, *target shape); of masks, uint8, where they are.

    Raises:
        DataError: If a record is wrong, or masks are missing or of another size.
    """
    if objective.has_class_labels:
        rows, labels = datalist.rows_and_labels(split, where, objective.classes)
        return rows, torch.from_numpy(labels)
    place, records = f"{where}, split '{split}'", datalist.splits.get(split, [])
    rows = integers(records, "image", place)
    if objective.target_columns:
        return rows, record_targets(records, objective, place)
    if masks is None:
        raise DataError(
            "missing_mask_array",
            f"{where}: expected 'mask_array' in the list for the objective '{objective.name}'. Add it.",
            where=where,
            objective=objective.name,
        )
    target = objective.target_shape(shape)
    fits = masks.dtype == np.uint8 and int(np.prod(masks.shape[1:])) == int(np.prod(target))
    if not fits or bool(((rows < 0) | (rows >= len(masks))).any()):
        raise DataError(
            "wrong_mask_array",
            f"expected masks of type uint8 and shape {list(target)} for each image at {place}, got an array "
            f"{list(masks.shape)} of {masks.dtype}. Write the masks again, a row for each image.",
            where=place,
            expected=list(target),
            found=list(masks.shape),
            type=str(masks.dtype),
        )
    chosen = ArrayMasks(masks, rows, target)
    step = max(1, CHUNK_BYTES // max(1, masks[:1].nbytes))
    for some in torch.arange(len(rows)).split(step) if len(rows) else ():
        objective.check_targets(chosen.gather(some), place, int(some[0]))
    return rows, chosen


def check_goal(datalist: Datalist, objective: Objective) -> None:
    """Refuse a list that is for another objective than the task's; a list of two classes is for 'binary' as well.

    Raises:
        DataError: If it is, or masks have other numbers of structures or another spacing, or what outputs are for has
            not a name each.
    """
    goal = datalist.goal
    if goal.in_space and goal.name == objective.name:
        facts, needed = goal.facts, objective.facts
        for key in ("channels", "overlapping", "spacing"):
            if facts[key] != needed[key]:
                raise DataError(
                    "wrong_mask_layout",
                    f"expected masks with {key} {needed[key]}, as the task has it, got a list with {facts[key]}. "
                    "Prepare the data of all sites alike (medfl prep decathlon has --spacing), or choose another task.",
                    key=key,
                    expected=needed[key],
                    found=facts[key],
                )
    if goal.name != objective.name and not (goal.has_class_labels and objective.has_class_labels):
        raise DataError(
            "different_objective",
            f"the list is for the objective '{goal.name}', and the task for '{objective.name}'. Choose another task, "
            "or correct the entry 'objective' of the list.",
            expected=objective.name,
            found=goal.name,
        )
    if not goal.has_class_labels:
        key = _names_key(objective)
        names = datalist.extra.get(key, [""] * objective.outputs)
        texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not texts or len(names) != objective.outputs:
            raise DataError(
                "wrong_output_names",
                f"expected {objective.outputs} names in '{key}' of the list, a text for each output of the objective "
                f"'{objective.name}', got {len(names) if texts else 'another thing'}. Correct the list.",
                key=key,
                objective=objective.name,
                expected=objective.outputs,
                found=len(names) if texts else None,
            )


def output_names(datalist: Datalist, objective: Objective) -> tuple[str, ...]:
    """What each output of a network is for, by its number: a structure, a finding, a number that is predicted.

    Returns:
        Names that can be shown; one that can't be is its number. Empty where the list names none, and where cases are
        of classes, which have their own (`Datalist.labels`).
    """
    names = () if objective.has_class_labels else datalist.extra.get(_names_key(objective), ())
    return tuple(inert_name(name, str(number)) for number, name in enumerate(names))


def _names_key(objective: Objective) -> str:
    return STRUCTURES if objective.in_space else TARGET_NAMES


def without_test(datalist: Datalist) -> Datalist:
    """The same list with no test image in it, for runs that must know nothing of them (the setting ``open_test``)."""
    return replace(datalist, splits=datalist.splits | {"test": []})
