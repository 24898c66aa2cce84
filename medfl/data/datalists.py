"""Read and write data lists: JSON files that assign array rows to the splits training, validation and test.

The format follows the Medical Segmentation Decathlon, but a list names one array file and addresses its images by row:

    {"name": "bloodmnist", "modality": "blood cell microscope", "licence": "CC BY 4.0", "num_classes": 8,
     "labels": {"0": "basophil", ...}, "image_array": "images.npy",
     "training": [{"image": 0, "label": 7, "subject_id": "train-00000"}, ...], "validation": [...], "test": [...]}

If cases have no class label, the list has an ``objective`` (`medfl.objectives`) instead of ``num_classes``. Records
then have targets instead of labels. Masks are the rows of a second array with the same row numbers as the images:

    {"objective": {"name": "survival"}, ..., "training": [{"image": 0, "target": [412.0, 1]}, ...]}
    {"objective": {"name": "segmentation", "channels": 2}, ..., "mask_array": "masks.npy",
     "structures": ["background", "lesion"], "training": [{"image": 0, "in_mask": [1]}, ...]}

Other keys are kept. A list may have ``exclusions`` (counts of images that were left out) and ``warnings``::

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

from medfl.data.targets import MASK_STRUCTURES_KEY, image_file_message, list_objective, read_integers, record_targets
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, Exclusion
from medfl.types import PathLike

if TYPE_CHECKING:
    from medfl.objectives import Objective

DATALIST_FILE = "datalist.json"
"""File name of the data list in its folder."""

SPLITS = ("training", "validation", "test")
"""Names of the splits of a data list, in the order in which they are written."""

MAX_CLASSES = 10_000
"""Upper limit of ``num_classes``. A larger value is treated as a mistake: a network has one output for each class."""

INTENT_KEY: Final = "presentation_intent"
"""Record key of a DICOM image's presentation intent: whether its pixels are for processing or for display."""


@dataclass
class Datalist:
    """Content of a data list.

    Attributes:
        name: Name of the data set.
        image_array: Path of the array file, relative to the folder of the list.
        num_classes: Number of classes, 2 to `MAX_CLASSES`. With an objective that has no class labels: number of its
            strata, which are groups of similar cases, such as censored and uncensored ones.
        labels: Maps each class number, as a string, to the class name.
        modality: Imaging modality.
        licence: Terms of use.
        splits: Maps each split to its records, one for each image; a split that is missing in the file is empty.
        extra: Other keys of the file, such as `medfl.data.targets.STRUCTURES_KEY`, with their values.
        objective: Name and settings of the objective, for example ``{"name": "segmentation", "channels": 2}``; None for
            a classification into `num_classes` classes.
        mask_array: Path of the mask array, relative to the folder of the list; empty without masks.
        exclusions: Reasons for which images were left out when the data set was prepared, with numbers of images.
        warnings: Warnings about the data set, one sentence each, collected during preparation.
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
        """Objective that `objective` describes, or multiclass classification if it is None."""
        from medfl.objectives import Multiclass, read_objective  # torch takes seconds to import

        return Multiclass(self.num_classes) if self.objective is None else read_objective(self.objective)

    def rows_and_labels(self, split: str, where: str, num_classes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the array rows and the labels of a split, after checking them.

        If cases have no class label, the strata of their targets replace the labels.

        Args:
            split: One of `SPLITS`.
            where: Owner of the list, for error messages, for example ``site 'site-01'``.
            num_classes: Number of classes of the task; None uses the number in this list.

        Returns:
            Two int64 arrays of shape (n,): rows and labels.

        Raises:
            DataError: If a record has no row or no label, or a label is not in 0..num_classes-1.
        """
        records = self.splits.get(split, [])
        place = f"{where}, split '{split}'"
        rows = read_integers(records, "image", place)
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
        """Return the stratum of each record, shape (n,), int64: its label, or the stratum of its target.

        A stratified partition keeps the proportions of these strata.

        Args:
            records: Records of a split.
            place: Name of the split, for messages.

        Raises:
            DataError: If a record has no target.
        """
        if self.goal.has_class_labels:
            return read_integers(records, "label", place)
        if self.mask_array:  # the records list the structures, so the masks need not be read
            return np.array([int(bool(record.get(MASK_STRUCTURES_KEY, True))) for record in records], dtype=np.int64)
        return np.asarray(self.goal.strata(record_targets(records, self.goal, place)))

    def without_test(self) -> Datalist:
        """Return the list without test records, for runs that must not load test images (setting ``open_test``)."""
        return replace(self, splits=self.splits | {"test": []})

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of images of each class in each split: ``counts[split][class number as string]``.

        All splits and all classes of the list are present.
        """
        table = {}
        for split in SPLITS:
            counts = Counter(self.strata(self.splits.get(split, []), f"split '{split}'").tolist())
            table[split] = {str(label): counts.get(label, 0) for label in range(self.num_classes)}
        return table


def make_records(rows: Sequence[int] | np.ndarray, labels: Sequence[int] | np.ndarray, prefix: str) -> list[CaseRecord]:
    """Return records of images whose subjects (patients) are unknown: each image gets its own subject identifier.

    Args:
        rows: Array rows of the images.
        labels: Label of each image.
        prefix: First part of the generated subject identifiers.
    """
    return [
        {"image": int(row), "label": int(label), "subject_id": f"{prefix}-{number:06d}"}
        for number, (row, label) in enumerate(zip(rows, labels, strict=True))
    ]


def subjects_of(records: Sequence[Mapping[str, object]]) -> list[str | None]:
    """Return the identifier of the subject (patient) of each record; None if it is unknown."""
    return [entry_text(record, "subject_id") for record in records]


def patient_numbers(records: Sequence[CaseRecord]) -> list[int] | None:
    """Return a patient number for each record, so that statistics can group images by patient.

    Numbers start at 0 and follow the order in which patients first occur, so they do not reveal who a patient is. An
    image whose subject is unknown counts as a patient of its own.

    Returns:
        One number for each record, or None if no two images are known to share a patient.
    """
    numbers_by_subject: dict[str | int, int] = {}
    subjects = subjects_of(records)
    numbers = [
        numbers_by_subject.setdefault(place if subject is None else subject, len(numbers_by_subject))
        for place, subject in enumerate(subjects)
    ]
    return numbers if len(numbers_by_subject) < len(numbers) else None


def entry_text(record: Mapping[str, object], key: str) -> str | None:
    """Return an entry of a record as text; None if it is absent, null, blank or NaN."""
    entry = record.get(key)
    if entry is None or (isinstance(entry, float) and math.isnan(entry)):
        return None
    return str(entry).strip() or None


def read_datalist(folder: PathLike) -> Datalist:
    """Read the data list in a folder.

    Raises:
        DataError: If the list is missing, is not valid JSON, or lacks a required key.
    """
    folder = Path(folder)
    return parse_datalist(read_datalist_bytes(folder), folder / DATALIST_FILE)


def read_datalist_bytes(folder: Path) -> bytes:
    """Return the bytes of the data list in a folder.

    Raises:
        DataError: If the list is missing, or is not a readable file.
    """
    path = folder / DATALIST_FILE
    if not path.is_file():  # reading a pipe would block forever
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
    """Parse the bytes of a data list.

    Args:
        content: Bytes of the file.
        path: Path of the file, for error messages.

    Raises:
        DataError: If the content is no JSON object, lacks a required key, or a key has the wrong type.
    """
    try:
        values = json.loads(content)
        if re.search(rb"\\u[dD][89a-fA-F]", content):  # a lone surrogate can't be written as UTF-8 again
            json.dumps(values, ensure_ascii=False).encode()
    except RecursionError:
        raise DataError(
            "nested_too_deep", f"the data list {path} is nested too deep. Write it again.", path=path
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
        if key not in values and any(_names_image_files(values.get(split)) for split in SPLITS):
            raise DataError("image_file_in_list", image_file_message(str(path)), path=path)
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
    _check_header(values, path)
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
    known = {key: values.pop(key) for key in _HEADER_KEYS if key in values}
    return Datalist(**{"name": "", **known}, splits=splits, extra=values, exclusions=exclusions, warnings=warnings)


def write_datalist(folder: Path, datalist: Datalist) -> None:
    """Write a data list into a folder, one record per line. Splits without records are left out."""
    head = {key: getattr(datalist, key) for key in _HEADER_KEYS} | datalist.extra
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
    (folder / DATALIST_FILE).write_text("{\n " + ",\n ".join(parts) + "\n}\n", encoding="utf-8")


_HEADER_KEYS = ("name", "modality", "licence", "num_classes", "labels", "image_array", "objective", "mask_array")
"""Keys of a data list that are fields of `Datalist`, in the order in which they are written."""


def _check_header(values: dict[str, Any], path: Path) -> None:
    """Raise if a header entry has the wrong type or an impossible value."""
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
    """Remove the entry ``exclusions`` from the parsed content, in place, and return it."""
    entries = values.pop("exclusions", [])
    try:
        if isinstance(entries, list):
            return tuple(Exclusion.model_validate(entry, strict=True) for entry in entries)
        cause = f"got {type(entries).__name__}"
    except ValidationError:
        cause = "got other entries"
    raise DataError(
        "wrong_type",
        f"expected a list in 'exclusions' of {path}, of objects with a text as 'reason' and a number of images as "
        f"'count', {cause}. Correct the list.",
        path=path,
        key="exclusions",
        expected="list",
    )


def _pop_warnings(values: dict[str, Any], path: Path) -> tuple[str, ...]:
    """Remove the entry ``warnings`` from the parsed content, in place, and return it."""
    texts = values.pop("warnings", [])
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return tuple(texts)
    cause = "other entries" if isinstance(texts, list) else type(texts).__name__
    raise DataError(
        "wrong_type",
        f"expected a list of texts in 'warnings' of {path}, got {cause}. Correct the list.",
        path=path,
        key="warnings",
        expected="list",
    )


def _names_image_files(records: Any) -> bool:
    """Return True if the first record names an image file instead of an array row."""
    first = records[0] if isinstance(records, list) and records else None
    return isinstance(first, dict) and isinstance(first.get("image"), str)
