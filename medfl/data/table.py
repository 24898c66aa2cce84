"""A table of labels: CSV or TSV as spreadsheets write it.

Rows are numbered as a spreadsheet shows them: the line with the names of the columns is row 1. Messages give these
numbers and never the content of a cell, which may be a patient's.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.data.readers.images import IMAGE_SUFFIXES
from medfl.errors import DataError
from medfl.utils.text import first_names

NO_NAMES = "The first line must name the columns; here it seems to hold data already."
"""Said instead of names where the names may be a patient's data."""

_DELIMITERS = (",", ";", "\t")


@dataclass(frozen=True)
class Table:
    """A table that was read.

    Attributes:
        path: The file.
        columns: Names of the columns, in their order.
        rows: One mapping from column to text for each row; texts have no blanks around them.
        numbers: The number of each row; the first one below the names is 2.
    """

    path: Path
    columns: list[str]
    rows: list[dict[str, str]]
    numbers: list[int]

    def require(self, columns: Sequence[str]) -> None:
        """Refuse a table that lacks columns.

        Raises:
            DataError: If any is missing; all are named.
        """
        missing = [column for column in columns if column not in self.columns]
        if missing:
            names = ", ".join(f"'{column}'" for column in missing)
            if _are_data(self.columns):
                raise DataError(
                    "missing_header",
                    f"expected the columns {names} in {self.path}, missing. {NO_NAMES}",
                    path=self.path,
                    columns=missing,
                )
            there = ", ".join(f"'{column}'" for column in self.columns) or "none"
            close = difflib.get_close_matches(missing[0], self.columns, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise DataError(
                "missing_column",
                f"expected the columns {names} in {self.path}, missing; the table has the columns {there}.{hint}",
                path=self.path,
                columns=missing,
            )

    def column(self, name: str, *, filled: bool = True) -> list[str]:
        """The texts of a column.

        Args:
            name: Of the column.
            filled: Whether every cell must hold something.

        Raises:
            DataError: If the column is missing or has empty cells.
        """
        self.require([name])
        values = [row[name] for row in self.rows]
        empty = [number for number, value in zip(self.numbers, values, strict=True) if not value]
        if filled and empty:
            raise DataError(
                "missing_value",
                f"expected a value in every row of the column '{name}' of {self.path}, {len(empty)} of {len(values)} "
                f"are empty: {row_list(empty)}. Fill them in, or delete these rows.",
                path=self.path,
                column=name,
                rows=empty,
            )
        return values


def row_list(numbers: Sequence[int]) -> str:
    """Row numbers for a message: ``rows 2, 5, 9``; only the first ones if there are many."""
    return f"table row{'s' if len(numbers) > 1 else ''} {first_names(sorted(numbers))}"


def read_table(path: Path) -> Table:
    """Read a table.

    Args:
        path: A text file in UTF-8, with or without byte order mark; columns are separated by commas, semicolons or
            tabs, texts in quotes may hold line breaks, and the first line names the columns. Empty rows are passed
            over.

    Raises:
        DataError: If it can't be read, is no UTF-8, has no rows, or its rows and columns do not fit.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(
            "unreadable_file",
            f"the table {path} can't be read: {error.strerror}. Give another --table.",
            path=path,
            reason=error.strerror,
        ) from None
    except UnicodeDecodeError:
        raise DataError(
            "wrong_encoding", f"expected a table in UTF-8, {path} is not. Save it as 'CSV UTF-8'.", path=path
        ) from None
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True))
    except csv.Error as error:
        raise DataError(
            "invalid_csv", f"the table {path} can't be read: {error}. Save it again as 'CSV UTF-8'.", path=path
        ) from None
    numbered = [(number, [cell.strip() for cell in record]) for number, record in enumerate(records, 1)]
    filled = [(number, cells) for number, cells in numbered if any(cells)]
    if len(filled) < 2:
        raise DataError(
            "empty_table",
            f"expected a line of column names and rows below it in {path}, got {len(filled)} lines.",
            path=path,
            found=len(filled),
        )
    return _table(path, filled[0][1], filled[1:])


def _table(path: Path, columns: list[str], records: list[tuple[int, list[str]]]) -> Table:
    while columns and not columns[-1]:
        columns.pop()
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        rule = f"expected each column of {path} to have a name of its own."
        if _are_data(columns):  # they may name a patient
            raise DataError("missing_header", f"{rule} {NO_NAMES}", path=path)
        names = ", ".join(f"'{column}'" for column in twice)
        raise DataError("duplicate_name", f"{rule} Several are called {names}.", path=path, columns=twice)
    wrong = [number for number, cells in records if len(cells) < len(columns) or any(cells[len(columns) :])]
    if wrong:
        raise DataError(
            "wrong_cell_count",
            f"expected {len(columns)} cells in each row of {path}, {len(wrong)} of {len(records)} rows have more or "
            f"fewer: {row_list(wrong)}. Put quotes around cells that hold the separator.",
            path=path,
            expected=len(columns),
            rows=wrong,
        )
    rows = [dict(zip(columns, cells, strict=False)) for _, cells in records]
    return Table(path, columns, rows, [number for number, _ in records])


def _are_data(columns: Sequence[str]) -> bool:
    """Whether the first line seems to be a row of data, which no message may show."""
    return any(name[:1].isdigit() or name.lower().endswith(IMAGE_SUFFIXES) for name in columns)


def _delimiter(text: str) -> str:
    """The separator that makes the most columns of the first line."""
    lines = text.lstrip()

    def columns(mark: str) -> int:
        return len(next(csv.reader(io.StringIO(lines, newline=""), delimiter=mark), []))

    return max(_DELIMITERS, key=columns)
