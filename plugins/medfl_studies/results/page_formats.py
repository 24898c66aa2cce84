"""Formats of numbers in the prose and the tables of the results pages.

Numbers are rounded to `EXACT` decimals first, so that rounding errors of different processors don't change a digit.
"""

from __future__ import annotations

from collections.abc import Sequence

from medfl.utils.formats import MISSING, join_words, p_value, table_lines
from medfl_studies.results.page_statistics import Estimate

COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
"""Words of small counts."""

EXACT = 10
"""Number of decimals to which every number is rounded before it is formatted."""


def short(value: Estimate | float | None, digits: int = 2) -> str:
    """Format a number for prose, without a leading zero: ``.75`` or ``−.03``."""
    if value is None:
        return MISSING
    number = round(_number(value), EXACT)
    text = f"{abs(number):.{digits}f}".removeprefix("0")
    return f"−{text}" if number < 0 and float(text) else text


def signed(value: Estimate | float | None, digits: int = 2) -> str:
    """Format a difference for prose, with its sign: ``+.11`` or ``−.03``; 0 has no sign."""
    text = short(value, digits)
    return text if value is None or text.startswith("−") or not float(text) else f"+{text}"


def size(value: Estimate | float | None, digits: int = 2) -> str:
    """Format a difference for prose without its sign: ``.03``, as in "lost .03"."""
    return short(value, digits).removeprefix("−")


def interval(value: Estimate | None, digits: int = 2) -> str:
    """Format a difference with its interval for prose: ``+.11 [+.04, +.18]``."""
    if value is None:
        return MISSING
    return f"{signed(value, digits)} {ends(value, digits)}"


def ends(value: Estimate | None, digits: int = 2) -> str:
    """Format the interval of a difference for prose: ``[−.01, +.18]``."""
    if value is None or value.low is None or value.high is None:
        return MISSING
    return f"[{signed(value.low, digits)}, {signed(value.high, digits)}]"


def words(values: Sequence[object]) -> str:
    """Join values for prose: ``184, 583 and 16``."""
    return join_words([str(value) for value in values])


def count_word(value: int | Sequence[object]) -> str:
    """Format a count for prose, up to ten as a word; for a sequence the number of its elements."""
    number = value if isinstance(value, int) else len(value)
    return COUNTS[number] if number < len(COUNTS) else str(number)


def cell(value: Estimate | float | None, sign: str = "", digits: int = 3) -> str:
    """Format a number for a table, with its interval if there is one: ``0.747 [0.669, 0.817]``.

    Args:
        value: The number.
        sign: ``+`` for a difference, which has a sign.
        digits: Number of decimals.
    """
    if value is None:
        return MISSING
    text = _decimal(_number(value), sign, digits)
    if not isinstance(value, Estimate) or value.low is None or value.high is None:
        return text
    return f"{text} [{_decimal(value.low, sign, digits)}, {_decimal(value.high, sign, digits)}]"


def spread_cell(value: Estimate | None) -> str:
    """Format the standard deviation over the seeds for a table."""
    return MISSING if value is None else cell(value.spread)


def mean_cell(value: Estimate | None, digits: int = 3) -> str:
    """Format a mean over the seeds with its standard deviation for a table: ``0.796 ± 0.043``.

    Args:
        value: The mean; None if it is not defined.
        digits: Number of decimals.
    """
    if value is None:
        return MISSING
    text = _decimal(value.value, "", digits)
    return text if value.spread is None else f"{text} ± {_decimal(value.spread, '', digits)}"


def p_cell(value: Estimate | None) -> str:
    """Format the p-value of a test for a table."""
    return MISSING if value is None or value.p is None else p_value(round(value.p, EXACT))


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    return table_lines([head, *lines])


def _number(value: Estimate | float) -> float:
    return value.value if isinstance(value, Estimate) else float(value)


def _decimal(value: float, sign: str, digits: int) -> str:
    """Format a decimal number; a number that rounds to 0 is never negative."""
    rounded = round(round(value, EXACT), digits) + 0.0
    return f"{rounded:{sign}.{digits}f}"
