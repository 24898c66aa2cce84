"""The option ``--target`` of ``medfl prep``: the kind of the target and its columns, such as ``number:age[years]``."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from medfl.data.ingest.columns.cells import is_answer_column, is_number_column, missing_cells
from medfl.data.readers.images import IMAGE_SUFFIXES
from medfl.data.table import CsvTable
from medfl.errors import DataError, SettingsError, did_you_mean

KINDS = ("class", "multilabel", "number", "survival", "mask")
"""Kinds of targets."""

SPELLINGS = {
    "class": "class:COLUMN",
    "multilabel": "multilabel:COLUMN,COLUMN,...",
    "number": "number:COLUMN or number:COLUMN[UNIT]",
    "survival": "survival:TIME,EVENT or survival:TIME[UNIT],EVENT",
    "mask": "mask:COLUMN",
}
"""Maps each kind of target to its spelling in messages."""

_COLUMN_COUNTS = {"class": (1, 1), "multilabel": (1, None), "number": (1, None), "survival": (2, 2), "mask": (1, 1)}
"""Maps each kind of target to its smallest and largest number of columns; None is no limit."""


@dataclass(frozen=True)
class ColumnWithUnit:
    """Column of a table and the unit of its numbers.

    Attributes:
        name: Name of the column.
        unit: Unit, such as ``years``; empty if it is not stated.
    """

    name: str
    unit: str = ""

    @property
    def title(self) -> str:
        """Name with the unit, such as ``age [years]``."""
        bare = self.name.removesuffix(f"[{self.unit}]").strip() if self.unit else self.name
        return f"{bare} [{self.unit}]" if self.unit and self.unit != bare else bare


@dataclass(frozen=True)
class TargetOption:
    """Target of a data set as the user states it.

    Attributes:
        kind: One of `KINDS`; empty if the table must decide it.
        words: Columns as the user wrote them, each possibly with a unit in brackets.
    """

    kind: str
    words: tuple[str, ...]

    def columns(self, table: CsvTable) -> list[ColumnWithUnit]:
        """Return the columns with their units.

        A word in brackets at the end of a column is its unit, whether it belongs to the column's name in the table or
        was added by the user.

        Raises:
            DataError: If the table lacks a column.
        """
        return [split_unit(word, table) for word in self.words]


def split_unit(word: str, table: CsvTable) -> ColumnWithUnit:
    """Return the column and the unit that a word such as ``age[years]`` names.

    Raises:
        DataError: If the table has neither a column of this name nor one of the name without the unit.
    """
    bare, bracket, unit = word.rstrip().removesuffix("]").rpartition("[")
    if not (bracket and word.rstrip().endswith("]")):
        bare, unit = word, ""
    name = word if word in table.columns else bare.strip()
    table.require([name])
    return ColumnWithUnit(name, unit.strip())


def parse_target(text: str) -> TargetOption:
    """Parse the text of ``--target``: ``KIND:COLUMN,...``, or only columns whose kind the table decides.

    A column whose name contains a comma is quoted as in a CSV file. A text before a colon that is no kind is refused.

    Raises:
        SettingsError: If the kind is unknown, no column is named, a column is named twice, or the kind needs another
            number of columns.
    """
    kind, colon, rest = text.partition(":")
    kind, rest = (kind.strip().lower(), rest) if colon else ("", text)
    if colon and kind not in KINDS:
        raise SettingsError(
            "unknown_choice",
            f"expected a kind of target before the colon in --target '{text}', got '{kind}'. "
            f"{did_you_mean(kind, KINDS)} {spellings_text()}",
            what="target",
            choice=kind,
        )
    words = tuple(word.strip() for word in next(csv.reader([rest], skipinitialspace=True), []) if word.strip())
    fewest, most = _COLUMN_COUNTS.get(kind, (1, None))
    if len(words) < fewest or len(words) > (most or len(words)) or len(set(words)) < len(words):
        raise SettingsError(
            "wrong_target_columns",
            f"expected {fewest if most == fewest else f'at least {fewest}'} different columns in --target '{text}', "
            f"got {len(words)}. {spellings_text([kind] if kind else KINDS)}",
            kind=kind,
            minimum=fewest,
            maximum=most,
            found=len(words),
        )
    return TargetOption(kind, words)


def spellings_text(kinds: Sequence[str] = KINDS) -> str:
    """Return the sentence that names the possible spellings of ``--target``."""
    return f"Write --target {', '.join(SPELLINGS[kind] for kind in kinds)}."


def infer_kind(option: TargetOption, table: CsvTable, missing: Sequence[str] = ()) -> TargetOption:
    """Return the option with its kind. If the user named none, the cells of the columns decide it.

    One column of text or of yes and no is a class, one of image files is a mask, and several columns of yes and no are
    a multilabel target. Everything else is ambiguous.

    Args:
        option: Parsed option.
        table: Table with the columns.
        missing: Further words that mark a missing value.

    Raises:
        DataError: If the table lacks a column, or the kind is not clear.
    """
    names = [column.name for column in option.columns(table)]
    if option.kind:
        return option
    cells = {name: _known(table.column(name, filled=False), missing) for name in names}
    first = cells[names[0]]
    if len(names) > 1 and all(map(is_answer_column, cells.values())):
        return TargetOption("multilabel", option.words)
    if len(names) == 1 and first and all(cell.lower().endswith(IMAGE_SUFFIXES) for cell in first):
        return TargetOption("mask", option.words)
    if len(names) == 1 and (is_answer_column(first) or not is_number_column(first)):
        return TargetOption("class", option.words)
    kinds = ["class", "number"] if len(names) == 1 else ["multilabel", "number", "survival"]
    listed = ", ".join(f"'{name}'" for name in names)
    raise DataError(
        "ambiguous_target",
        f"the kind of the target is not clear from the column{'s' if len(names) > 1 else ''} {listed}. "
        f"{spellings_text(kinds)}",
        columns=names,
        kinds=kinds,
    )


def _known(cells: Sequence[str], missing: Sequence[str]) -> list[str]:
    """Return the cells that are not missing."""
    absent = missing_cells(cells, missing)
    return [cell for cell, is_absent in zip(cells, absent, strict=True) if not is_absent]
