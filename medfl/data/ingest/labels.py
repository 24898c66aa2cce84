"""What a table says of a hospital's own images: labels, patients, sites, splits."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from medfl.data.datalists import INTENT
from medfl.data.table import Table, row_list
from medfl.errors import DataError, SettingsError

SPLIT_WORDS = {
    "train": "training",
    "training": "training",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
"""What a split column may hold, in any case, and the split that it means."""

_OWN_KEYS = ("image", "label", "subject_id", "site", INTENT)


@dataclass(frozen=True)
class Columns:
    """Which column of the table says what.

    Attributes:
        image: Path of the image file.
        label: The class, as text or number.
        group: What images of one patient have in common; None if each image is of another patient.
        site: Where the image was taken; None if that does not matter.
        split: Training, validation or test; None puts all images into training.
        keep: Columns to keep as they are, for example sex or age.
    """

    image: str
    label: str
    group: str | None = None
    site: str | None = None
    split: str | None = None
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = Counter(self.all())
        twice = [column for column, count in named.items() if count > 1]
        if twice:
            listed = ", ".join(f"'{column}'" for column in twice)
            raise SettingsError(
                "duplicate_column",
                f"expected another column for each option, got {listed} more than once. What identifies an image or a "
                "patient is never kept, and a label, site or split column is not needed as a kept one.",
                columns=twice,
            )
        reserved = [column for column in self.keep if column in _OWN_KEYS]
        if reserved:
            listed = ", ".join(f"'{column}'" for column in reserved)
            raise SettingsError(
                "reserved_name",
                f"a kept column can't be called {listed}: medfl uses this name itself. Rename the column, or give "
                "it as --site-column, --label-column or --group-column.",
                columns=reserved,
            )

    def all(self) -> list[str]:
        """Every column that is named."""
        named = (self.image, self.label, self.group, self.site, self.split, *self.keep)
        return [column for column in named if column is not None]


@dataclass(frozen=True)
class Rows:
    """The rows of a table; all lists are equally long.

    Attributes:
        numbers: Row in the table.
        images: Path of the image, as in the table.
        labels: Class, 0..C-1.
        classes: Names of the classes.
        subjects: Made-up identifier of the patient.
        splits: ``training``, ``validation`` or ``test``.
        others: Site and kept columns.
    """

    numbers: list[int]
    images: list[str]
    labels: list[int]
    classes: list[str]
    subjects: list[str]
    splits: list[str]
    others: list[dict[str, str]]


def read_rows(table: Table, columns: Columns) -> Rows:
    """Read labels, patients, sites and splits.

    Args:
        table: The table.
        columns: Which column says what.

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
    _check_sides(groups, splits)
    return Rows(
        numbers=table.numbers,
        images=table.column(columns.image),
        labels=[classes.index(label) for label in labels],
        classes=classes,
        subjects=number_subjects(groups),
        splits=splits,
        others=_others(table, columns),
    )


def order_classes(labels: Sequence[str]) -> list[str]:
    """The different labels, sorted: as numbers if all are numbers, otherwise as text.

    Raises:
        DataError: If labels differ only in small and capital letters, or in how a number is written.
    """
    numbers = {label: _number(label) for label in set(labels)}
    numeric = None not in numbers.values()
    alike = defaultdict(list)
    for label in sorted(numbers):
        alike[str(numbers[label]) if numeric else label.casefold()].append(label)
    doubtful = [spelled for spelled in alike.values() if len(spelled) > 1]
    if doubtful:
        listed = ", ".join(" / ".join(f"'{label}'" for label in spelled) for spelled in doubtful)
        raise DataError(
            "ambiguous_labels", f"expected one way to write each label, got {listed}. Make them alike.", labels=doubtful
        )
    return sorted(numbers, key=lambda label: (numbers[label] or 0.0, label)) if numeric else sorted(numbers)


def number_subjects(groups: Sequence[str]) -> list[str]:
    """Made-up identifiers: ``subject-000001``, ... by the first appearance of each group."""
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


def _splits(table: Table, column: str | None) -> list[str]:
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


def _check_sides(groups: Sequence[str], splits: Sequence[str]) -> None:
    sides = defaultdict(set)
    for group, split in zip(groups, splits, strict=True):
        sides[group].add(split)
    torn = sum(len(sides_of_group) > 1 for sides_of_group in sides.values())
    if torn:
        raise DataError(
            "patient_in_two_splits",
            f"expected all images of a patient in one split, {torn} of {len(sides)} patients are in several. "
            "Move each one to one split, or leave out --split-column and let `medfl partition` split by patient.",
            count=torn,
            total=len(sides),
        )


def _others(table: Table, columns: Columns) -> list[dict[str, str]]:
    sites = table.column(columns.site) if columns.site else None
    facts = []
    for place, row in enumerate(table.rows):
        site = {} if sites is None else {"site": sites[place]}
        facts.append(site | {column: row[column] for column in columns.keep})
    return facts


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
