"""Read targets, patients, sites and splits of the user's own cases from a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from medfl.data.datalists import INTENT_KEY
from medfl.data.features.record_features import FEATURES_KEY
from medfl.data.ingest.columns.cells import missing_cells
from medfl.data.ingest.columns.identifier_guard import refuse_identifiers
from medfl.data.ingest.columns.target_option import TargetOption, parse_target
from medfl.data.ingest.columns.target_values import TargetRows, TargetValues, mask_targets, read_targets
from medfl.data.table import CsvTable, row_list
from medfl.data.targets import MASK_STRUCTURES_KEY, TARGET_KEY
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

UNSTATED = "not stated"
"""Licence of a data set for which the user gave none."""

_RESERVED_KEYS = ("image", "label", "subject_id", "site", INTENT_KEY, TARGET_KEY, MASK_STRUCTURES_KEY, FEATURES_KEY)
"""Record keys that medfl writes itself, so that no kept column may have their name."""


@dataclass(frozen=True)
class TableColumns:
    """Names of the table columns with each kind of information.

    Attributes:
        image: Column with the path of the image file; None for a table without images.
        target: Text of the option ``--target`` (`medfl.data.ingest.columns.target_option`); None if mask files are
            found by their suffix.
        group: Column whose entry the images of one patient share; None if each image is of another patient.
        site: Column with the site where the image was taken; None if sites are not needed.
        split: Column with training, validation or test; None puts all images into training.
        keep: Columns to copy into the data list, for example sex or age.
        missing: Further words that mark a missing value.
        skip_missing: Whether rows without a target are left out.
    """

    image: str | None
    target: str | None = None
    group: str | None = None
    site: str | None = None
    split: str | None = None
    keep: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    skip_missing: bool = False

    def __post_init__(self) -> None:
        named = Counter(self.all())
        if self.image is not None and self.image == self.group:
            named[self.image] -= 1  # the PatientID of a DICOM series is the image and the patient
        duplicates = [column for column, count in named.items() if count > 1]
        if duplicates:
            listed = ", ".join(f"'{column}'" for column in duplicates)
            raise SettingsError(
                "duplicate_column",
                f"expected a different column for each option, got {listed} more than once. An image or patient "
                "column is never kept, and a target, site or split column need not be named in --keep-column.",
                columns=duplicates,
            )
        reserved = [column for column in self.keep if column in _RESERVED_KEYS]
        if reserved:
            listed = ", ".join(f"'{column}'" for column in reserved)
            raise SettingsError(
                "reserved_name",
                f"--keep-column can't be {listed}: medfl uses this name itself. Rename the column, or give "
                "it as --site-column, --target or --group-column.",
                columns=reserved,
            )

    def option(self) -> TargetOption | None:
        """Return the parsed target, or None if there is none."""
        return None if self.target is None else parse_target(self.target)

    def all(self) -> list[str]:
        """Return the names of all columns that are set. Columns of the target may have a unit in brackets."""
        option = self.option()
        targets = () if option is None else option.words
        named = (self.image, *targets, self.group, self.site, self.split, *self.keep)
        return [column for column in named if column is not None]


class TableOptions(BaseModel):
    """Options of specs for a hospital's own table: names of its columns, and facts about the data set."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    """Settings of pydantic: help texts come from docstrings."""

    missing: tuple[str, ...] | None = None
    """Word that marks a missing value, beside empty cells and NA; may be repeated."""
    skip_missing_target: bool = False
    """Leave out rows without a target; the data list and the report contain their number."""
    group_column: str | None = None
    """Column with the patient; its content is not kept."""
    site_column: str | None = None
    """Column with the site; kept as 'site'."""
    split_column: str | None = None
    """Column with the split: train, val or test."""
    keep_column: tuple[str, ...] | None = None
    """Further column to keep for the report, such as sex; may be repeated."""
    name: str | None = None
    """Name of the data set; by default the name of the folder --out."""
    licence: str = UNSTATED
    """Terms of use to record in the data list."""

    def table_columns(self, image: str | None, target: str | None) -> TableColumns:
        """Return the column names of the table.

        Args:
            image: Column with the path of the image file; None for a table without images.
            target: Text of the option ``--target``, or None.
        """
        return TableColumns(
            image=image,
            target=target,
            group=self.group_column,
            site=self.site_column,
            split=self.split_column,
            keep=tuple(self.keep_column or ()),
            missing=tuple(self.missing or ()),
            skip_missing=self.skip_missing_target,
        )

    def credit(self, title: str) -> str:
        """Return the line with the terms of use that ``medfl prep`` shows first."""
        hint = " (state it with --licence TEXT)" if self.licence == UNSTATED else ""
        return f"{title}: licence {self.licence}{hint}"


@dataclass(frozen=True)
class LabelledRows:
    """Rows of a table, one entry per case; all lists have the same length.

    Attributes:
        numbers: Row number in the table, as a spreadsheet shows it.
        images: Path of the image, as in the table; empty for a table without images.
        targets: Target of each row.
        subjects: Generated identifier of the patient.
        splits: ``training``, ``validation`` or ``test``.
        others: Further entries of the case's record: the site under ``site``, and the kept columns under their names.
        left_out: Number of rows that were left out because their target is missing.
        table: The rows as read, without rows that were left out.
    """

    numbers: list[int]
    images: list[str]
    targets: TargetValues
    subjects: list[str]
    splits: list[str]
    others: list[dict[str, str]]
    left_out: int
    table: CsvTable


def read_rows(table: CsvTable, columns: TableColumns) -> LabelledRows:
    """Read targets, patients, sites and splits from a table.

    Args:
        table: Table of the cases.
        columns: Names of the columns to read.

    Raises:
        DataError: If columns are missing (all are named), cells are empty, the targets are impossible, a column looks
            like an identifier, or a patient is in several splits.
    """
    option = columns.option()
    targets = () if option is None else option.words
    table.require([column for column in columns.all() if column not in targets or not column.endswith("]")])
    rows = TargetRows(table, mask_targets([""] * len(table.rows)))
    if option is not None:
        rows = read_targets(
            table,
            option,
            group_column=columns.group,
            missing=columns.missing,
            skip_missing=columns.skip_missing,
        )
    table = rows.table
    for column in columns.keep:
        cells = table.column(column, filled=False)
        absent = missing_cells(cells, columns.missing)
        known = [cell for cell, is_absent in zip(cells, absent, strict=True) if not is_absent]
        refuse_identifiers(column, known, hint=" for --keep-column")
    if columns.site is not None:
        refuse_identifiers(columns.site, (), hint=" for --site-column")  # sites may be as many as patients
    splits = _splits(table, columns.split)
    groups = table.column(columns.group) if columns.group else [str(number) for number in table.numbers]
    _check_splits(groups, splits)
    return LabelledRows(
        numbers=table.numbers,
        images=[] if columns.image is None else table.column(columns.image),
        targets=rows.values,
        subjects=number_subjects(groups),
        splits=splits,
        others=_other_entries(table, columns),
        left_out=rows.left_out,
        table=table,
    )


def number_subjects(groups: Sequence[str]) -> list[str]:
    """Return generated identifiers ``subject-000001``, ... for groups, numbered in the order of first appearance."""
    order: dict[str, int] = {}
    return [f"subject-{order.setdefault(group, len(order) + 1):06d}" for group in groups]


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
