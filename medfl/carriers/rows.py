"""Rows of metrics in messages: JSON there, checked by the receiver."""

from __future__ import annotations

import math
import re
from typing import Any

from medfl.errors import RefusedError
from medfl.evaluation import Row

WORD = re.compile(r"[A-Za-z0-9_@.-]{1,80}(/[A-Za-z0-9_@.-]{1,80}){0,2}")
"""Names of models and metrics."""

SPLITS, MOMENTS = ("train", "val", "test", "shared"), ("aggregated", "trained")

MAX_ROWS = 100_000
"""Rows in one message, at most."""


def rows_to_json(rows: list[Row]) -> list[list[Any]]:
    """Rows as lists; a value that is not finite becomes its name, as JSON knows no such number."""
    return [[*row[:-1], row.value if math.isfinite(row.value) else str(row.value)] for row in rows]


def rows_from_json(found: Any, site: str) -> list[Row]:
    """The rows of a message.

    Args:
        found: What came.
        site: Who sent it; it may tell rows of itself only.

    Raises:
        RefusedError: If a row has another form, or is of another site.
    """
    if not isinstance(found, list) or len(found) > MAX_ROWS:
        raise RefusedError(f"Expected at most {MAX_ROWS} rows of scores from '{site}', got something else.")
    return [_row(entry, site) for entry in found]


def _row(entry: Any, site: str) -> Row:
    if not isinstance(entry, list) or len(entry) != len(Row._fields) or not _is_row(entry, site):
        raise RefusedError(
            f"Expected rows {list(Row._fields)} of '{site}' itself, got another one. Both sides need the same version."
        )
    round_, of, model, split, moment, metric, value = entry
    return Row(round_, of, model, split, moment, metric, float(value) if isinstance(value, str) else value)


def _is_row(entry: list[Any], site: str) -> bool:
    round_, of, model, split, moment, metric, value = entry
    words = all(isinstance(word, str) and WORD.fullmatch(word) for word in (model, metric))
    return (
        type(round_) is int
        and 0 <= round_ < 2**31
        and of == site
        and words
        and split in SPLITS
        and moment in MOMENTS
        and (_is_number(value) or value in ("nan", "inf", "-inf"))
    )


def _is_number(value: Any) -> bool:
    return (type(value) is int and abs(value) < 2**63) or (type(value) is float and math.isfinite(value))
