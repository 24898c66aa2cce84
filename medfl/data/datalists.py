"""Data lists: which images belong to which split, in the JSON form of the Medical Segmentation Decathlon.

A list names one array file and addresses its images by row::

    {"name": "bloodmnist", "modality": "blood cell microscope", "licence": "CC BY 4.0", "num_classes": 8,
     "labels": {"0": "basophil", ...}, "image_array": "images.npy",
     "training": [{"image": 0, "label": 7, "subject_id": "train-00000"}, ...], "validation": [...], "test": [...]}

A partition of a pooled data set is a set of such lists that all name the same array: no image is copied.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from medfl.errors import DataError

FILE = "datalist.json"
"""The name of a data list in its folder."""

SPLITS = ("training", "validation", "test")
"""The splits of a data list, in the order in which they are written."""

INTENT = "presentation_intent"
"""Key of a record: what a DICOM file's pixels are for, see `medfl.data.dicom_intent`."""

Record = dict[str, Any]
"""One image: at least ``image`` (a row) and ``label``."""


@dataclass
class Datalist:
    """A data list.

    Attributes:
        name: Of the data set.
        image_array: Path of the array file, relative to the folder of the list.
        num_classes: Number of classes, >= 2.
        labels: Number of a class, as a string, to its name.
        modality: How the images were taken.
        licence: Terms of use.
        splits: Name to records; an absent split is empty.
        extra: Other keys of the file; they are kept.
    """

    name: str
    image_array: str
    num_classes: int
    labels: dict[str, str] = field(default_factory=dict)
    modality: str = ""
    licence: str = ""
    splits: dict[str, list[Record]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def rows_and_labels(self, split: str, where: str, num_classes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rows and labels of a split, checked.

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
        rows = _integers(records, "image", place)
        labels = _integers(records, "label", place)
        classes = self.num_classes if num_classes is None else num_classes
        wrong = labels[(labels < 0) | (labels >= classes)]
        if len(wrong):
            raise DataError(
                f"expected labels in 0..{classes - 1} at {place}, got {int(wrong[0])} "
                f"({len(wrong)} of {len(labels)} labels are outside). The list has num_classes {self.num_classes}: "
                f"run the task with that number (--num_classes {self.num_classes}), or correct the list."
            )
        return rows, labels

    def counts(self) -> dict[str, dict[str, int]]:
        """Split to class to number of images; every class of the list is there."""
        table = {}
        for split in SPLITS:
            found = Counter(record["label"] for record in self.splits.get(split, []))
            table[split] = {str(label): found.get(label, 0) for label in range(self.num_classes)}
        return table


def make_records(rows: Sequence[int] | np.ndarray, labels: Sequence[int] | np.ndarray, prefix: str) -> list[Record]:
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


def subjects_of(records: Sequence[Record]) -> list[str | None]:
    """The subject of each image; None where it is not known."""
    return [entry_text(record, "subject_id") for record in records]


def entry_text(record: Record, key: str) -> str | None:
    """An entry of a record as text; None if it is missing (absent, null, blank, or not a number)."""
    entry = record.get(key)
    if entry is None or (isinstance(entry, float) and math.isnan(entry)):
        return None
    return str(entry).strip() or None


def read_datalist(folder: Path) -> Datalist:
    """Read the data list of a folder.

    Raises:
        DataError: If it is missing, is no JSON, or lacks a key.
    """
    return parse_datalist(read_bytes(folder), folder / FILE)


def read_bytes(folder: Path) -> bytes:
    """The bytes of the data list of a folder.

    Raises:
        DataError: If it is missing.
    """
    try:
        return (folder / FILE).read_bytes()
    except OSError:
        raise DataError(
            f"expected a data list {folder / FILE}, there is none. Write one with `medfl prep` and `medfl partition`, "
            "or give the folder that holds it."
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
    except ValueError as error:
        raise DataError(f"the data list {path} is no valid JSON: {error}. Write it again.") from None
    if not isinstance(values, dict):
        raise DataError(f"expected a JSON object in {path}, got {type(values).__name__}. Write the list again.")
    for key, kind in (("image_array", str), ("num_classes", int)):
        if key not in values and any(_is_file(values.get(split)) for split in SPLITS):
            raise DataError(_files_message(str(path)))
        if not isinstance(values.get(key), kind):
            got = f"got {values[key]!r}" if key in values else f"the keys are {', '.join(values) or 'none'}"
            raise DataError(f"expected '{key}' of type {kind.__name__} in {path}, {got}. Add it to the list.")
    if not isinstance(values.get("labels", {}), dict):
        raise DataError(
            f'expected a JSON object in \'labels\' of {path}, such as {{"0": "benign", "1": "malignant"}}, '
            f"got {type(values['labels']).__name__}. Correct the list."
        )
    if not any(split in values for split in SPLITS):
        raise DataError(f"expected one of {', '.join(SPLITS)} in {path}, got none of them. Add the records.")
    splits = {split: values.pop(split, []) for split in SPLITS}
    for split, records in splits.items():
        if not isinstance(records, list):
            raise DataError(f"expected a list of records in '{split}' of {path}, got {type(records).__name__}")
    known = {key: values.pop(key) for key in _HEAD if key in values}
    return Datalist(**{"name": "", **known}, splits=splits, extra=values)


def write_datalist(folder: Path, datalist: Datalist) -> None:
    """Write a data list into a folder, one record a line; splits without records are left out."""
    head = {key: getattr(datalist, key) for key in _HEAD} | datalist.extra
    parts = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for split in SPLITS:
        records = datalist.splits.get(split, [])
        if records:
            lines = ",\n  ".join(json.dumps(record, ensure_ascii=False) for record in records)
            parts.append(f'"{split}": [\n  {lines}\n ]')
    if not any(datalist.splits.values()):
        parts.append('"training": []')
    (folder / FILE).write_text("{\n " + ",\n ".join(parts) + "\n}\n", encoding="utf-8")


_HEAD = ("name", "modality", "licence", "num_classes", "labels", "image_array")


def _integers(records: list[Record], key: str, place: str) -> np.ndarray:
    """The integers under a key of all records."""
    try:
        values = [record[key] for record in records]
    except (KeyError, TypeError):
        number = next(n for n, record in enumerate(records) if not isinstance(record, dict) or key not in record)
        raise DataError(f"record {number} of {place} has no '{key}'. Every record needs 'image' and 'label'.") from None
    for number, value in enumerate(values):
        if type(value) is not int:
            if key == "image" and isinstance(value, str):
                raise DataError(_files_message(f"record {number} of {place}"))
            raise DataError(
                f"expected an integer in '{key}' of record {number} of {place}, got {type(value).__name__}. "
                "Correct the list."
            )
    return np.array(values, dtype=np.int64)


def _is_file(records: Any) -> bool:
    first = records[0] if isinstance(records, list) and records else None
    return isinstance(first, dict) and isinstance(first.get("image"), str)


def _files_message(where: str) -> str:
    return (
        f"expected a row of the image array in 'image', got the path of a file: {where}. Lists of image files are not "
        "read: `medfl prep folder` turns image files and a table of labels into one array and a list."
    )
