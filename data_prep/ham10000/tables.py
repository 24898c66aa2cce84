"""Read and check the metadata table of HAM10000, in the form of Kaggle or Harvard Dataverse.

Each image has a row. Columns on Kaggle::

    lesion_id,image_id,dx,dx_type,age,sex,localization

Dataverse adds ``dataset``, the collection that an image comes from. Its file has the ending ``.tab`` or none, and is
separated by tabs or commas. A lesion may have several images. Messages number rows as a spreadsheet shows them
(`medfl.data.table`) and contain no name of an image or lesion.

Source: Tschandl, Rosendahl and Kittler, Scientific Data 5:180161 (2018).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError, did_you_mean

OFFICIAL_CLASS_COUNTS = {"akiec": 327, "bcc": 514, "bkl": 1099, "df": 115, "mel": 1113, "nv": 6705, "vasc": 142}
"""Maps each diagnosis, in the order of the labels, to its number of images in the release: 10,015 in all."""

OFFICIAL_LESIONS = 7470
"""Number of lesions in the release."""

OFFICIAL_UNKNOWN_VALUES = {"age": 57, "sex": 57, "localization": 234}
"""Maps each column to the number of images whose value the release does not state."""

OFFICIAL_COLLECTIONS = {"rosendahl": 2259, "vidir_modern": 3363, "vidir_molemax": 3954, "vienna_dias": 439}
"""Maps each collection (value of the column ``dataset``) to its number of images in the release."""

KEPT_COLUMNS = ("age", "sex", "localization", "dataset")
"""Columns whose values go into the records of the prepared data set, if the table has them."""

_NOT_KNOWN = ("", "unknown", "na", "nan")
_IMAGE_ID = re.compile(r"\w+")


@dataclass(frozen=True)
class HamMetadata:
    """Content of the metadata table; all lists have one entry for each image, in the order of the table.

    Attributes:
        table: The table.
        images: ``image_id``, the name of each image file without its ending.
        lesions: ``lesion_id`` of each image; None if the table has no such column.
        labels: Class number of each image: position of the diagnosis in `OFFICIAL_CLASS_COUNTS`.
        facts: Metadata of each image: maps each of `KEPT_COLUMNS` to the value; None for a value that the table marks
            as unknown. The age is in years.
    """

    table: CsvTable
    images: list[str]
    lesions: list[str] | None
    labels: list[int]
    facts: list[dict[str, str | float | None]]

    def deviations(self) -> list[str]:
        """Describe the differences from the official table, one sentence each."""
        classes = list(OFFICIAL_CLASS_COUNTS)
        counts = Counter(classes[label] for label in self.labels)
        sentences = []
        if counts != OFFICIAL_CLASS_COUNTS:
            sentences.append(
                f"{_describe_class_counts({name: counts[name] for name in OFFICIAL_CLASS_COUNTS})}; HAM10000 has "
                f"{_describe_class_counts(OFFICIAL_CLASS_COUNTS)}"
            )
        if self.lesions is not None and len(set(self.lesions)) != OFFICIAL_LESIONS:
            sentences.append(f"{len(set(self.lesions))} lesions; HAM10000 has {OFFICIAL_LESIONS}")
        sentences += [
            f"the table has no column '{column}'"
            for column in OFFICIAL_UNKNOWN_VALUES
            if column not in self.table.columns
        ]
        for column, expected in OFFICIAL_UNKNOWN_VALUES.items():
            missing = sum(fact.get(column, "") is None for fact in self.facts)
            if column in self.table.columns and missing != expected:
                sentences.append(f"the {column} of {missing} images is not known; in HAM10000 that of {expected}")
        collections = Counter(fact["dataset"] for fact in self.facts if "dataset" in fact)
        if collections and collections != OFFICIAL_COLLECTIONS:
            sentences.append("the column 'dataset' does not hold the four collections of HAM10000 with their numbers")
        several = self._lesions_with_several_diagnoses()
        if several:
            sentences.append(f"{several} lesions have images with different diagnoses; in HAM10000 there are none")
        return sentences

    def _lesions_with_several_diagnoses(self) -> int:
        """Count the lesions whose images have different diagnoses."""
        labels_by_lesion = defaultdict(set)
        for lesion, label in zip(self.lesions or [], self.labels, strict=False):
            labels_by_lesion[lesion].add(label)
        return sum(len(labels) > 1 for labels in labels_by_lesion.values())


def read_metadata(path: Path, need_lesions: bool = True) -> HamMetadata:
    """Read and check the table.

    Args:
        path: The file, of Kaggle or of Dataverse.
        need_lesions: Whether the column ``lesion_id`` is required.

    Raises:
        DataError: If columns are missing, a diagnosis is unknown, or an image has no name, no lesion or several rows.
    """
    table = read_table(path)
    table.require(["image_id", "dx"])
    if need_lesions and "lesion_id" not in table.columns:
        raise DataError(
            "missing_column",
            f"expected the column 'lesion_id' in {path}, which says which images are of one lesion, missing. Take the "
            "metadata of the release; or have each image count as a lesion of its own (--groups image), but then "
            "images of one lesion may be in training and in the test set.",
            path=path,
            columns=("lesion_id",),
        )
    return HamMetadata(
        table=table,
        images=_image_ids(table),
        lesions=table.column("lesion_id", filled=need_lesions) if "lesion_id" in table.columns else None,
        labels=_labels(table),
        facts=[_kept_values(row) for row in table.rows],
    )


def _image_ids(table: CsvTable) -> list[str]:
    """Return the names of the images; raise DataError if a name is invalid or occurs twice."""
    names = table.column("image_id")
    wrong = [number for number, name in zip(table.numbers, names, strict=True) if not _IMAGE_ID.fullmatch(name)]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected names like ISIC_0024306, without ending or folder, in the column 'image_id' of {table.path}, "
            f"{len(wrong)} of {len(names)} rows have another value: {row_list(wrong)}. Correct them.",
            path=table.path,
            column="image_id",
            rows=wrong,
        )
    counts = Counter(names)
    duplicates = [number for number, name in zip(table.numbers, names, strict=True) if counts[name] > 1]
    if duplicates:
        raise DataError(
            "duplicate_row",
            f"expected one row for each image in {table.path}, {len(duplicates)} of {len(names)} rows share their "
            f"image_id with another: {row_list(duplicates)}. Keep one row of each image.",
            path=table.path,
            column="image_id",
            rows=duplicates,
        )
    return names


def _labels(table: CsvTable) -> list[int]:
    """Return the class number of each row; raise DataError for an unknown diagnosis."""
    classes = {name: label for label, name in enumerate(OFFICIAL_CLASS_COUNTS)}
    diagnoses = [diagnosis.lower() for diagnosis in table.column("dx")]
    unknown = [place for place, diagnosis in enumerate(diagnoses) if diagnosis not in classes]
    if unknown:
        first = diagnoses[unknown[0]]
        shown = (
            f" '{first}'" if re.fullmatch("[a-z ]{1,40}", first) else ""
        )  # any other text may identify an image or lesion
        raise DataError(
            "wrong_label",
            f"unknown diagnosis{shown} in the column 'dx' of {table.path}; {len(unknown)} of {len(diagnoses)} rows "
            f"have an unknown one: {row_list([table.numbers[place] for place in unknown])}. "
            f"{did_you_mean(first, classes)}",
            path=table.path,
            column="dx",
            rows=[table.numbers[place] for place in unknown],
            label=first if shown else None,
        )
    return [classes[diagnosis] for diagnosis in diagnoses]


def _kept_values(row: Mapping[str, str]) -> dict[str, str | float | None]:
    """Return the values of `KEPT_COLUMNS` in a row; None for unknown values, the age as a number."""
    known = {
        column: row[column] if row[column].lower() not in _NOT_KNOWN else None
        for column in KEPT_COLUMNS
        if column in row
    }
    return known | ({"age": _parse_age(row["age"])} if "age" in known else {})


def _parse_age(text: str) -> float | None:
    """Parse an age in years; None if the text is not a number."""
    return float(text) if re.fullmatch(r"\d{1,3}(\.\d+)?", text) else None


def _describe_class_counts(counts: Mapping[str, int]) -> str:
    """Describe the total number of images and the number of each class."""
    return f"{sum(counts.values())} images ({', '.join(f'{name} {count}' for name, count in counts.items())})"


def count_images_of_shared_lesions(lesions: Sequence[str]) -> int:
    """Count the images whose lesion has other images as well."""
    return sum(count for count in Counter(lesions).values() if count > 1)
