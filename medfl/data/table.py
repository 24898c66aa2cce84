"""Read tables (CSV or TSV, as spreadsheets export them).

Rows are numbered as a spreadsheet shows them: the line with the column names is row 1. Error messages give row numbers
and never the content of a cell, because a cell may hold patient data.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
import stat
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from medfl.data.readers.images import IMAGE_SUFFIXES
from medfl.errors import DataError
from medfl.utils.text import first_names

MISSING_HEADER_TEXT = "The first line must name the columns; here it seems to hold data already."
"""Text that replaces the column names in a message if the first line may contain patient data."""

MAX_TABLE_BYTES = 1 << 29
"""Maximum size of a table file in bytes."""

MAX_COLUMNS = 100_000
"""Maximum number of columns of a table."""

_MAX_SHOWN_COLUMNS, _MAX_COMPARED_COLUMNS = 50, 2000
"""Maximum number of columns that a message lists, and that are compared with a missing one."""

_DELIMITERS = (",", ";", "\t")

_DELIMITER_LINE = re.compile(r"sep=([,;\t])\r?\n")
"""Pattern of a first line that only tells spreadsheets the delimiter."""

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")
"""Characters that no text has, but files of other kinds have. Databases export others as line breaks in a cell."""


@dataclass(frozen=True)
class CsvTable:
    """Table with named columns, read from a CSV or TSV file.

    Attributes:
        path: Path of the file.
        columns: Column names, in file order.
        rows: One mapping from column name to cell text for each row. Cell texts have no surrounding white space.
        numbers: Spreadsheet row number of each row; the first row below the column names is 2.
    """

    path: Path
    columns: list[str]
    rows: list[dict[str, str]]
    numbers: list[int]

    def require(self, columns: Sequence[str]) -> None:
        """Raise if the table lacks any of the given columns.

        Raises:
            DataError: If any column is missing. The message names all missing columns.
        """
        missing = [column for column in columns if column not in self.columns]
        if missing:
            names = ", ".join(f"'{column}'" for column in missing)
            if _is_data_row(self.columns):
                raise DataError(
                    "missing_header",
                    f"expected the columns {names} in {self.path}, missing. {MISSING_HEADER_TEXT}",
                    path=self.path,
                    columns=missing,
                )
            existing = first_names([f"'{column}'" for column in self.columns], _MAX_SHOWN_COLUMNS) or "none"
            close = difflib.get_close_matches(missing[0], self.columns[:_MAX_COMPARED_COLUMNS], n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise DataError(
                "missing_column",
                f"expected the columns {names} in {self.path}, missing; the table has the columns {existing}.{hint}",
                path=self.path,
                columns=missing,
            )

    def column(self, name: str, *, filled: bool = True) -> list[str]:
        """Return the cell texts of a column.

        Args:
            name: Name of the column.
            filled: Whether to raise if a cell is empty.

        Raises:
            DataError: If the column is missing, or `filled` is True and a cell is empty.
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

    def without(self, numbers: Collection[int]) -> CsvTable:
        """Return the table without the rows of the given spreadsheet numbers."""
        dropped = set(numbers)
        kept = [place for place, number in enumerate(self.numbers) if number not in dropped]
        return replace(self, rows=[self.rows[place] for place in kept], numbers=[self.numbers[place] for place in kept])


def row_list(numbers: Sequence[int]) -> str:
    """Return row numbers as text for a message: ``table rows 2, 5, 9``; only the first ones if there are many."""
    return f"table row{'s' if len(numbers) > 1 else ''} {first_names(sorted(numbers))}"


def read_table(path: Path) -> CsvTable:
    """Read a table from a CSV or TSV file.

    Args:
        path: Text file in UTF-8, with or without byte order mark. Columns are separated by commas, semicolons or tabs,
            and the first line names them. Quoted cells may contain line breaks. Empty rows are skipped.

    Raises:
        DataError: If the file can't be read, is not UTF-8, has no rows, has duplicate column names, or a row has too
            many or too few cells.
    """
    try:
        _check_file(path)
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
    stated = _DELIMITER_LINE.match(text)
    text = text[stated.end() :] if stated else text
    try:
        delimiter = stated[1] if stated else _guess_delimiter(text)
        records = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise DataError(
            "invalid_csv", f"the table {path} can't be read: {error}. Save it again as 'CSV UTF-8'.", path=path
        ) from None
    numbered = [(number, [cell.strip() for cell in record]) for number, record in enumerate(records, 1)]
    if _CONTROL_CHARACTERS.search(text):
        strange = [number for number, cells in numbered if _CONTROL_CHARACTERS.search("".join(cells))]
        raise DataError(
            "control_characters",
            f"expected text in {path}, got control characters in {row_list(strange)}: the file is damaged, or no "
            "table. Save it again as 'CSV UTF-8'.",
            path=path,
            rows=strange,
        )
    filled = [(number, cells) for number, cells in numbered if any(cells)]
    if len(filled) < 2:
        raise DataError(
            "empty_table",
            f"expected a line of column names and rows below it in {path}, got {len(filled)} lines.",
            path=path,
            found=len(filled),
        )
    return _build_table(path, filled[0][1], filled[1:])


def _check_file(path: Path) -> None:
    """Raise if a table is no file, such as a named pipe or a device, or too large to be read."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise DataError(
            "not_a_file",
            f"expected a table file at {path}, got a named pipe, a socket or a device. Copy it.",
            path=path,
        )
    if status.st_size > MAX_TABLE_BYTES:
        raise DataError(
            "file_too_large",
            f"expected a table of up to {MAX_TABLE_BYTES >> 20} MiB, {path} has {status.st_size >> 20}. Split it.",
            path=path,
            maximum=MAX_TABLE_BYTES,
            found=status.st_size,
        )


def _build_table(path: Path, columns: list[str], records: list[tuple[int, list[str]]]) -> CsvTable:
    while columns and not columns[-1]:
        columns.pop()
    if len(columns) > MAX_COLUMNS:
        raise DataError(
            "too_many_columns",
            f"expected a table of up to {MAX_COLUMNS} columns, {path} has {len(columns)}. Leave out columns that are "
            "not needed, or exchange rows and columns.",
            path=path,
            maximum=MAX_COLUMNS,
            found=len(columns),
        )
    duplicates = sorted(column for column, count in Counter(columns).items() if count > 1)
    if duplicates:
        rule = f"expected each column of {path} to have a unique name."
        if _is_data_row(columns):  # the first line may contain a patient's data
            raise DataError("missing_header", f"{rule} {MISSING_HEADER_TEXT}", path=path)
        names = first_names([f"'{column}'" for column in duplicates])
        raise DataError("duplicate_name", f"{rule} Several are called {names}.", path=path, columns=duplicates)
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
    return CsvTable(path, columns, rows, [number for number, _ in records])


def _is_data_row(columns: Sequence[str]) -> bool:
    """Return True if the first line looks like a row of data, which no message may repeat."""
    return any(name[:1].isdigit() or name.lower().endswith(IMAGE_SUFFIXES) for name in columns)


def _guess_delimiter(text: str) -> str:
    """Return the delimiter that splits the first line into the most columns."""
    lines = text.lstrip()

    def columns(mark: str) -> int:
        try:
            return len(next(csv.reader(io.StringIO(lines, newline=""), delimiter=mark), []))
        except csv.Error:  # a long line without this mark is no cell
            return 0

    return max(_DELIMITERS, key=columns)
