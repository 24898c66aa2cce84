"""Read the cells of a table: missing values, numbers with a decimal point or comma, and answers such as yes and no.

No error message repeats a cell, because a cell may hold patient data.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from medfl.data.table import row_list
from medfl.errors import DataError

MISSING_WORDS = ("", "na", "n/a", "#n/a", "#nv", "nan", "null", "not assessed")
"""Cells that count as missing, in lower case: empty cells, and the words of R, pandas and Excel."""

YES_WORDS = ("1", "yes", "true", "present", "positive", "ja", "wahr")
"""Cells that mean that a finding is present or that an event happened, in lower case."""

NO_WORDS = ("0", "no", "false", "absent", "negative", "nein", "falsch")
"""Cells that mean that a finding is absent or that no event happened, in lower case."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")


def missing_cells(cells: Sequence[str], words: Collection[str] = ()) -> list[bool]:
    """Return for each cell whether its value is missing.

    Args:
        cells: Cell texts.
        words: Further words that mark a missing value, in any case.
    """
    missing = {*MISSING_WORDS, *(word.casefold() for word in words)}
    return [cell.casefold() in missing for cell in cells]


def is_answer_column(cells: Sequence[str]) -> bool:
    """Return True if every cell is one of `YES_WORDS` or `NO_WORDS`, also written as 1.0 or 0.0."""
    return bool(cells) and all(_answer(cell) is not None for cell in cells)


def read_answers(
    column: str, cells: Sequence[str], numbers: Sequence[int], words: Collection[str] = ()
) -> list[float | None]:
    """Return 1.0, 0.0, or None (missing) for each cell of a column of answers.

    Args:
        column: Name of the column, for messages.
        cells: Cell texts.
        numbers: Table row of each cell, for messages.
        words: As in `missing_cells`.

    Raises:
        DataError: If a cell is neither missing nor one of `YES_WORDS` and `NO_WORDS`.
    """
    absent = missing_cells(cells, words)
    answers = [None if is_absent else _answer(cell) for cell, is_absent in zip(cells, absent, strict=True)]
    _refuse_unreadable(column, numbers, answers, absent, "invalid_answer", "1 or 0 (yes or no)")
    return answers


def read_numbers(
    column: str, cells: Sequence[str], numbers: Sequence[int], words: Collection[str] = ()
) -> list[float | None]:
    """Return the number in each cell of a column, or None where it is missing.

    A column is written with a decimal point or with a decimal comma. Thousands separators are refused.

    Args:
        column: Name of the column, for messages.
        cells: Cell texts.
        numbers: Table row of each cell, for messages.
        words: As in `missing_cells`.

    Raises:
        DataError: If a cell is neither missing nor a finite number, or commas may separate thousands.
    """
    absent = missing_cells(cells, words)
    known = [cell for cell, is_absent in zip(cells, absent, strict=True) if not is_absent]
    with_comma = [cell for cell in known if "," in cell]
    if with_comma and all(_THOUSANDS.fullmatch(cell) for cell in with_comma):
        raise DataError(
            "ambiguous_number",
            f"the commas in the column '{column}' may be decimal commas or separate thousands. Write its numbers with "
            "a decimal point and without separators of thousands.",
            column=column,
        )
    mark = "," if with_comma else "."
    values = [None if is_absent else _parse(cell, mark) for cell, is_absent in zip(cells, absent, strict=True)]
    _refuse_unreadable(column, numbers, values, absent, "invalid_number", "a number")
    return values


def is_number_column(cells: Sequence[str]) -> bool:
    """Return True if the cells, none of them missing, are numbers with one kind of decimal mark."""
    mark = "," if any("," in cell for cell in cells) else "."
    return bool(cells) and all(_parse(cell, mark) is not None for cell in cells)


def _refuse_unreadable(
    column: str,
    numbers: Sequence[int],
    values: Sequence[float | None],
    absent: Sequence[bool],
    code: str,
    expected: str,
) -> None:
    """Raise if a cell is not missing and has no value.

    Args:
        column: Name of the column.
        numbers: Table row of each cell.
        values: Value of each cell; None if it has none.
        absent: Whether each cell is missing.
        code: Code of the error.
        expected: Expected content of a cell.
    """
    cells = zip(numbers, values, absent, strict=True)
    wrong = [row for row, value, is_absent in cells if value is None and not is_absent]
    if wrong:
        raise DataError(
            code,
            f"expected {expected} in each row of the column '{column}', or an empty cell where it is not known, "
            f"{len(wrong)} of {len(values)} rows hold something else: {row_list(wrong)}. Correct them. A word that "
            "means 'not known' or 'not assessed' is named with --missing WORD.",
            column=column,
            rows=wrong,
            total=len(values),
        )


def _answer(cell: str) -> float | None:
    word = cell.casefold()
    if re.fullmatch(r"[01][.,]0*", word):
        word = word[0]
    return 1.0 if word in YES_WORDS else 0.0 if word in NO_WORDS else None


def _parse(cell: str, mark: str) -> float | None:
    """Return the number in a cell; None if it is no number with this decimal mark, or too large."""
    if mark == ",":
        if not (_DECIMAL_COMMA.fullmatch(cell) or re.fullmatch(r"[+-]?\d+", cell)):
            return None
        cell = cell.replace(",", ".")
    if not _NUMBER.fullmatch(cell):
        return None
    value = float(cell)
    return value if abs(value) < 1e30 else None
