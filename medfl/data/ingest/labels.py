"""Read labels, patients, sites and splits of the user's own images from a table."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from medfl.data.datalists import INTENT_KEY
from medfl.data.table import CsvTable, row_list
from medfl.errors import DataError, SettingsError

SPLIT_WORDS = {
    "train": "training",
    "training": "training",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
"""Maps each word that a split column may contain, in lower case, to the split that it means."""

_RESERVED_KEYS = ("image", "label", "subject_id", "site", INTENT_KEY)
"""Record keys that medfl writes itself, so that no kept column may have their name."""


@dataclass(frozen=True)
class TableColumns:
    """Names of the table columns with each kind of information.

    Attributes:
        image: Column with the path of the image file.
        label: Column with the class, as text or number.
        group: Column whose entry the images of one patient share; None if each image is of another patient.
        site: Column with the site where the image was taken; None if sites are not needed.
        split: Column with training, validation or test; None puts all images into training.
        keep: Columns to copy into the data list, for example sex or age.
    """

    image: str
    label: str
    group: str | None = None
    site: str | None = None
    split: str | None = None
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = Counter(self.all())
        duplicates = [column for column, count in named.items() if count > 1]
        if duplicates:
            listed = ", ".join(f"'{column}'" for column in duplicates)
            raise SettingsError(
                "duplicate_column",
                f"expected a different column for each option, got {listed} more than once. An image or patient "
                "column is never kept, and a label, site or split column need not be named in --keep-column.",
                columns=duplicates,
            )
        reserved = [column for column in self.keep if column in _RESERVED_KEYS]
        if reserved:
            listed = ", ".join(f"'{column}'" for column in reserved)
            raise SettingsError(
                "reserved_name",
                f"--keep-column can't be {listed}: medfl uses this name itself. Rename the column, or give "
                "it as --site-column, --label-column or --group-column.",
                columns=reserved,
            )

    def all(self) -> list[str]:
        """Return the names of all columns that are set."""
        named = (self.image, self.label, self.group, self.site, self.split, *self.keep)
        return [column for column in named if column is not None]


@dataclass(frozen=True)
class LabelledRows:
    """Rows of a table, one entry per image; all lists have the same length except `classes`.

    Attributes:
        numbers: Row number in the table, as a spreadsheet shows it.
        images: Path of the image, as in the table.
        labels: Class number, from 0.
        classes: Class names, by class number.
        subjects: Generated identifier of the patient.
        splits: ``training``, ``validation`` or ``test``.
        others: Further entries of the image's record: the site under ``site``, and the kept columns under their names.
    """

    numbers: list[int]
    images: list[str]
    labels: list[int]
    classes: list[str]
    subjects: list[str]
    splits: list[str]
    others: list[dict[str, str]]


def read_rows(table: CsvTable, columns: TableColumns) -> LabelledRows:
    """Read labels, patients, sites and splits from a table.

    Args:
        table: Table of the images.
        columns: Names of the columns to read.

    Raises:
        DataError: If columns are missing (all are named), cells are empty, there are fewer than two classes, or a
            patient is in several splits.
    """
    table.require(columns.all())
    labels = table.column(columns.label)
    _check_classes(columns.label, len(set(labels)), len(labels))  # first: the next message names the labels
    classes = order_classes(labels)
    splits = _splits(table, columns.split)
    groups = table.column(columns.group) if columns.group else [str(number) for number in table.numbers]
    _check_splits(groups, splits)
    return LabelledRows(
        numbers=table.numbers,
        images=table.column(columns.image),
        labels=[classes.index(label) for label in labels],
        classes=classes,
        subjects=number_subjects(groups),
        splits=splits,
        others=_other_entries(table, columns),
    )


def order_classes(labels: Sequence[str]) -> list[str]:
    """Return the distinct labels, sorted as numbers if all are numbers, otherwise as text.

    Raises:
        DataError: If labels differ only in upper and lower case, or in how a number is written.
    """
    numbers = {label: _number(label) for label in set(labels)}
    numeric = None not in numbers.values()
    spellings = defaultdict(list)
    for label in sorted(numbers):
        spellings[str(numbers[label]) if numeric else label.casefold()].append(label)
    ambiguous = [variants for variants in spellings.values() if len(variants) > 1]
    if ambiguous:
        listed = ", ".join(" / ".join(f"'{label}'" for label in variants) for variants in ambiguous)
        raise DataError(
            "ambiguous_labels",
            f"expected one spelling of each label, got {listed}. Use one of them everywhere.",
            labels=ambiguous,
        )
    return sorted(numbers, key=lambda label: (numbers[label] or 0.0, label)) if numeric else sorted(numbers)


def number_subjects(groups: Sequence[str]) -> list[str]:
    """Return generated identifiers ``subject-000001``, ... for groups, numbered in the order of first appearance."""
    order: dict[str, int] = {}
    return [f"subject-{order.setdefault(group, len(order) + 1):06d}" for group in groups]


def _check_classes(column: str, classes: int, rows: int) -> None:
    if classes < 2:
        raise DataError(
            "too_few_classes",
            f"expected at least two classes in the column '{column}', got {classes} in {rows} rows. "
            "Add images of another class, or give another --label-column.",
            column=column,
            minimum=2,
            found=classes,
            total=rows,
        )
    if classes > 2 and 2 * classes > rows:
        raise DataError(
            "too_many_classes",
            f"expected several images of each class, got {classes} different values in {rows} rows of the column "
            f"'{column}': they look like identifiers or measurements. Give the column with the classes.",
            column=column,
            found=classes,
            total=rows,
        )


def _splits(table: CsvTable, column: str | None) -> list[str]:
    if column is None:
        return ["training"] * len(table.rows)
    words = [word.lower() for word in table.column(column)]
    wrong = [number for number, word in zip(table.numbers, words, strict=True) if word not in SPLIT_WORDS]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected {', '.join(SPLIT_WORDS)} in the column '{column}', {len(wrong)} of {len(words)} rows hold "
            f"something else: {row_list(wrong)}. Correct them, or leave out --split-column.",
            column=column,
            expected=list(SPLIT_WORDS),
            rows=wrong,
            total=len(words),
        )
    return [SPLIT_WORDS[word] for word in words]


def _check_splits(groups: Sequence[str], splits: Sequence[str]) -> None:
    splits_by_group = defaultdict(set)
    for group, split in zip(groups, splits, strict=True):
        splits_by_group[group].add(split)
    in_several = sum(len(splits_of_group) > 1 for splits_of_group in splits_by_group.values())
    if in_several:
        raise DataError(
            "patient_in_two_splits",
            f"expected all images of a patient in one split, {in_several} of {len(splits_by_group)} patients are in "
            "several. "
            "Move each one to one split, or leave out --split-column and let `medfl partition` split by patient.",
            count=in_several,
            total=len(splits_by_group),
        )


def _other_entries(table: CsvTable, columns: TableColumns) -> list[dict[str, str]]:
    sites = table.column(columns.site) if columns.site else None
    entries = []
    for place, row in enumerate(table.rows):
        site = {} if sites is None else {"site": sites[place]}
        entries.append(site | {column: row[column] for column in columns.keep})
    return entries


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
