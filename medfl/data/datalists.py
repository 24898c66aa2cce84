"""Data lists: which images belong to which split, in the JSON form of the Medical Segmentation Decathlon.

A list names one array file and addresses its images by row::

    {"name": "bloodmnist", "modality": "blood cell microscope", "licence": "CC BY 4.0", "num_classes": 8,
     "labels": {"0": "basophil", ...}, "image_array": "images.npy",
     "training": [{"image": 0, "label": 7, "subject_id": "train-00000"}, ...], "validation": [...], "test": [...]}

Where cases are of no class the list names its objective (`medfl.objectives`) in place of ``num_classes``, and records
have targets in place of labels; masks are rows of a second array, the same ones as the images'::

    {"objective": {"name": "survival"}, ..., "training": [{"image": 0, "target": [412.0, 1]}, ...]}
    {"objective": {"name": "segmentation", "channels": 2}, ..., "mask_array": "masks.npy",
     "structures": ["background", "lesion"], "training": [{"image": 0, "in_mask": [1]}, ...]}

Further keys are kept. A list may have ``exclusions``, which count images that were left out, and ``warnings``::

    {..., "exclusions": [{"reason": "the file can't be read", "count": 4}], "warnings": ["..."]}

A partition of a pooled data set is a set of such lists that all name the same array: no image is copied.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import ValidationError

from medfl.data.targets import IN_MASK, files_message, integers, list_objective, record_targets
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, Exclusion
from medfl.types import PathLike

if TYPE_CHECKING:
    from medfl.objectives import Objective

FILE = "datalist.json"
"""The name of a data list in its folder."""

SPLITS = ("training", "validation", "test")
"""The splits of a data list, in the order in which they are written."""

MAX_CLASSES = 10_000
"""More classes than this are a mistake: a network would have an output for each."""

INTENT: Final = "presentation_intent"
"""Key of a record: what a DICOM file's pixels are for, see `medfl.data.readers.dicom_intent`."""


@dataclass
class Datalist:
    """A data list.

    Attributes:
        name: Of the data set.
        image_array: Path of the array file, relative to the folder of the list.
        num_classes: Number of classes, 2 to `MAX_CLASSES`; where cases are of no class, of the strata of the objective.
        labels: Number of a class, as a string, to its name.
        modality: How the images were taken.
        licence: Terms of use.
        splits: Name to records; an absent split is empty.
        extra: Other keys of the file, such as `medfl.data.targets.STRUCTURES`; they are kept.
        objective: What is learned, as `Objective.facts`; None for `num_classes` classes.
        mask_array: Path of the array of masks, relative to the folder of the list; empty without masks.
        exclusions: Images that were left out when the data set was prepared.
        warnings: Sentences of the preparation on the data set.
    """

    name: str
    image_array: str
    num_classes: int
    labels: dict[str, str] = field(default_factory=dict)
    modality: str = ""
    licence: str = ""
    splits: dict[str, list[CaseRecord]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, Any] | None = None
    mask_array: str = ""
    exclusions: tuple[Exclusion, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def goal(self) -> Objective:
        """What is learned."""
        from medfl.objectives import Multiclass, read_objective  # torch takes seconds to import

        return Multiclass(self.num_classes) if self.objective is None else read_objective(self.objective)

    def rows_and_labels(self, split: str, where: str, num_classes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rows and labels of a split, checked; where cases are of no class, their strata in place of labels.

        Args:
            split: One of `SPLITS`.
            where: What this list belongs to, for error messages, for example ``site 'site-01'``.
            num_classes: Number of classes of the task; None means that of this list.

        Returns:
            Two int64 arrays of shape (n,).

        Raises:
            DataError: If a record has no row or no label, or a label is not in 0..num_classes-1.
        """
        records = self.splits.get(split, [])
        place = f"{where}, split '{split}'"
        rows = integers(records, "image", place)
        labels = self.strata(records, place)
        classes = self.num_classes if num_classes is None else num_classes
        wrong = labels[(labels < 0) | (labels >= classes)]
        if len(wrong):
            raise DataError(
                "wrong_label",
                f"expected labels in 0..{classes - 1} at {place}, got {int(wrong[0])} "
                f"({len(wrong)} of {len(labels)} labels are outside). The list has num_classes {self.num_classes}: "
                f"run the task with that number (--num_classes {self.num_classes}), or correct the list.",
                where=place,
                maximum=classes - 1,
                found=int(wrong[0]),
                count=len(wrong),
            )
        return rows, labels

    def strata(self, records: list[CaseRecord], place: str) -> np.ndarray:
        """What partitions keep in proportion: the label of each record, or the stratum of its target; (n,), int64.

        Args:
            records: Of a split.
            place: Where they stand, for messages.

        Raises:
            DataError: If a record has no target.
        """
        if self.goal.has_class_labels:
            return integers(records, "label", place)
        if self.mask_array:  # nobody reads masks for that
            return np.array([int(bool(record.get(IN_MASK, True))) for record in records], dtype=np.int64)
        return np.asarray(self.goal.strata(record_targets(records, self.goal, place)))

    def without_test(self) -> Datalist:
        """Return the list without test images, for runs that may not open them (the setting ``open_test``)."""
        return replace(self, splits=self.splits | {"test": []})

    def counts(self) -> dict[str, dict[str, int]]:
        """Split to class to number of images; every class of the list is there."""
        table = {}
        for split in SPLITS:
            counts = Counter(self.strata(self.splits.get(split, []), f"split '{split}'").tolist())
            table[split] = {str(label): counts.get(label, 0) for label in range(self.num_classes)}
        return table


def make_records(rows: Sequence[int] | np.ndarray, labels: Sequence[int] | np.ndarray, prefix: str) -> list[CaseRecord]:
    """Records of images whose subjects are not known: each image is its own.

    Args:
        rows: Rows of the array.
        labels: One label for each row.
        prefix: What the subject's made-up identifier begins with.
    """
    return [
        {"image": int(row), "label": int(label), "subject_id": f"{prefix}-{number:06d}"}
        for number, (row, label) in enumerate(zip(rows, labels, strict=True))
    ]


def subjects_of(records: Sequence[Mapping[str, object]]) -> list[str | None]:
    """The subject of each image; None where it is not known."""
    return [entry_text(record, "subject_id") for record in records]


def patient_numbers(records: Sequence[CaseRecord]) -> list[int] | None:
    """Which images are of one patient, in numbers from 0 in the order in which patients come, for statistics.

    They tell nothing of who a patient is. An image whose subject is not known counts as a patient of its own.

    Returns:
        None where no two images are of one patient, as far as is known.
    """
    known: dict[str | int, int] = {}
    subjects = subjects_of(records)
    numbers = [known.setdefault(place if who is None else who, len(known)) for place, who in enumerate(subjects)]
    return numbers if len(known) < len(numbers) else None


def entry_text(record: Mapping[str, object], key: str) -> str | None:
    """An entry of a record as text; None if it is missing (absent, null, blank, or not a number)."""
    entry = record.get(key)
    if entry is None or (isinstance(entry, float) and math.isnan(entry)):
        return None
    return str(entry).strip() or None


def read_datalist(folder: PathLike) -> Datalist:
    """Read the data list of a folder.

    Raises:
        DataError: If it is missing, is no JSON, or lacks a key.
    """
    folder = Path(folder)
    return parse_datalist(read_bytes(folder), folder / FILE)


def read_bytes(folder: Path) -> bytes:
    """The bytes of the data list of a folder.

    Raises:
        DataError: If it is missing, or no file that can be read.
    """
    path = folder / FILE
    if not path.is_file():  # reading a pipe would wait for ever
        raise DataError(
            "missing_file",
            f"expected a data list {path}, there is none. Write one with `medfl prep` and `medfl partition`, "
            "or give the folder that holds it.",
            path=path,
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            "unreadable_file",
            f"the data list {path} can't be read: {error.strerror}. Permit reading it.",
            path=path,
            reason=error.strerror,
        ) from None


def parse_datalist(content: bytes, path: Path) -> Datalist:
    """Parse a data list.

    Args:
        content: Its bytes.
        path: Where they came from, for error messages.

    Raises:
        DataError: If it is no JSON object, lacks a key, or a key has the wrong type.
    """
    try:
        values = json.loads(content)
        if re.search(rb"\\u[dD][89a-fA-F]", content):  # half of such a pair is no text that can be written again
            json.dumps(values, ensure_ascii=False).encode()
    except RecursionError:
        raise DataError(
            "nested_too_deep", f"the data list {path} is nested too deep to be one. Write it again.", path=path
        ) from None
    except ValueError as error:
        raise DataError(
            "invalid_json", f"the data list {path} is no valid JSON: {error}. Write it again.", path=path
        ) from None
    if not isinstance(values, dict):
        raise DataError(
            "wrong_type",
            f"expected a JSON object in {path}, got {type(values).__name__}. Write the list again.",
            path=path,
            expected="dict",
            found=type(values).__name__,
        )
    if "objective" in values:
        values["num_classes"] = len(list_objective(values, path).stratum_names)
    for key, kind in (("image_array", str), ("num_classes", int)):
        if key not in values and any(_is_file(values.get(split)) for split in SPLITS):
            raise DataError("image_file_in_list", files_message(str(path)), path=path)
        if type(values.get(key)) is not kind:
            got = f"got {type(values[key]).__name__}" if key in values else "there is none"
            raise DataError(
                "wrong_type",
                f"expected '{key}' of type {kind.__name__} in {path}, {got}. Correct the list.",
                path=path,
                key=key,
                expected=kind.__name__,
                found=type(values[key]).__name__ if key in values else None,
            )
    _check_head(values, path)
    if not any(split in values for split in SPLITS):
        raise DataError(
            "missing_split",
            f"expected one of {', '.join(SPLITS)} in {path}, got none of them. Add the records.",
            path=path,
            expected=SPLITS,
        )
    splits = {split: values.pop(split, []) for split in SPLITS}
    for split, records in splits.items():
        if not isinstance(records, list):
            raise DataError(
                "wrong_type",
                f"expected a list of records in '{split}' of {path}, got {type(records).__name__}",
                path=path,
                key=split,
                expected="list",
                found=type(records).__name__,
            )
    exclusions, warnings = _pop_exclusions(values, path), _pop_warnings(values, path)
    known = {key: values.pop(key) for key in _HEAD if key in values}
    return Datalist(**{"name": "", **known}, splits=splits, extra=values, exclusions=exclusions, warnings=warnings)


def write_datalist(folder: Path, datalist: Datalist) -> None:
    """Write a data list into a folder, one record a line; splits without records are left out."""
    head = {key: getattr(datalist, key) for key in _HEAD} | datalist.extra
    left_out = ("objective", "mask_array") if datalist.objective is None else ("num_classes",)
    head = {key: value for key, value in head.items() if key not in left_out}
    head = {key: value for key, value in head.items() if key != "mask_array" or value}
    if datalist.exclusions:
        head["exclusions"] = [exclusion.to_json() for exclusion in datalist.exclusions]
    if datalist.warnings:
        head["warnings"] = datalist.warnings
    parts = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for split in SPLITS:
        records = datalist.splits.get(split, [])
        if records:
            lines = ",\n  ".join(json.dumps(record, ensure_ascii=False) for record in records)
            parts.append(f'"{split}": [\n  {lines}\n ]')
    if not any(datalist.splits.values()):
        parts.append('"training": []')
    (folder / FILE).write_text("{\n " + ",\n ".join(parts) + "\n}\n", encoding="utf-8")


_HEAD = ("name", "modality", "licence", "num_classes", "labels", "image_array", "objective", "mask_array")


def _check_head(values: dict[str, Any], path: Path) -> None:
    """Refuse a list whose head says what can't be."""
    if "\0" in values["image_array"]:
        raise DataError(
            "invalid_path",
            f"expected the path of a file in 'image_array' of {path}, got one with a NUL. Correct the list.",
            path=path,
            key="image_array",
        )
    count = values["num_classes"]
    if not (1 if "objective" in values else 2) <= count <= MAX_CLASSES:
        got = count if abs(count) < 10**9 else "a number of more digits"
        raise DataError(
            "wrong_class_count",
            f"expected 'num_classes' in 2..{MAX_CLASSES} in {path}, got {got}. Correct the list.",
            path=path,
            maximum=MAX_CLASSES,
            found=got,
        )
    for key in ("name", "modality", "licence", "mask_array"):
        if not isinstance(values.get(key, ""), str):
            raise DataError(
                "wrong_type",
                f"expected text in '{key}' of {path}, got {type(values[key]).__name__}. Correct the list.",
                path=path,
                key=key,
                expected="str",
                found=type(values[key]).__name__,
            )
    labels = values.get("labels", {})
    if not isinstance(labels, dict):
        raise DataError(
            "wrong_type",
            f'expected a JSON object in \'labels\' of {path}, such as {{"0": "benign", "1": "malignant"}}, '
            f"got {type(labels).__name__}. Correct the list.",
            path=path,
            key="labels",
            expected="dict",
            found=type(labels).__name__,
        )
    numbers = {str(number) for number in range(count)}
    for number, name in labels.items():
        if number not in numbers or not isinstance(name, str):
            got = "another key" if number not in numbers else f"{type(name).__name__} as a name"
            raise DataError(
                "invalid_class_name",
                f'expected the numbers of classes, "0" to "{count - 1}", with a name each in \'labels\' of {path}, got '
                f"{got}. Correct 'labels' or 'num_classes'.",
                path=path,
                maximum=count - 1,
                found=got,
            )


def _pop_exclusions(values: dict[str, Any], path: Path) -> tuple[Exclusion, ...]:
    """Take the exclusions out of the content of a list."""
    entries = values.pop("exclusions", [])
    try:
        if isinstance(entries, list):
            return tuple(Exclusion.model_validate(entry, strict=True) for entry in entries)
        cause = f"got {type(entries).__name__}"
    except ValidationError:
        cause = "got another thing in the list"
    raise DataError(
        "wrong_type",
        f"expected a list in 'exclusions' of {path}, of objects with a text as 'reason' and a number of images as "
        f"'count', {cause}. Correct the list.",
        path=path,
        key="exclusions",
        expected="list",
    )


def _pop_warnings(values: dict[str, Any], path: Path) -> tuple[str, ...]:
    """Take the warnings out of the content of a list."""
    texts = values.pop("warnings", [])
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return tuple(texts)
    cause = "another thing in the list" if isinstance(texts, list) else type(texts).__name__
    raise DataError(
        "wrong_type",
        f"expected a list of texts in 'warnings' of {path}, got {cause}. Correct the list.",
        path=path,
        key="warnings",
        expected="list",
    )


def _is_file(records: Any) -> bool:
    first = records[0] if isinstance(records, list) and records else None
    return isinstance(first, dict) and isinstance(first.get("image"), str)
