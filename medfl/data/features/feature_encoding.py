"""Encode the rows of a table as vectors of numbers, in the same way for training and for inference.

A number keeps its value, and is NaN where it is missing. A category becomes one feature of 0 or 1 for each known
category, and one for all others. Each column has a further feature that is 1 where its value is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from medfl.data.ingest.columns.cells import missing_cells, read_numbers
from medfl.data.table import CsvTable
from medfl.errors import DataError
from medfl.records.feature_columns import FeatureColumn, FeatureColumns

COLUMNS: Final = "columns"
"""Key of a data list of table rows: the typed columns of the table, as in the file ``columns.json``."""


def typed_columns(entries: Mapping[str, Any]) -> FeatureColumns | None:
    """Return the typed columns of a data list, or None if it has none.

    Args:
        entries: Further entries of the data list (`medfl.data.datalists.Datalist.extra`).

    Raises:
        DataError: If the entry is damaged.
    """
    if COLUMNS not in entries:
        return None
    return read_columns(entries[COLUMNS])


def read_columns(values: Any) -> FeatureColumns:
    """Return typed columns from their JSON values.

    Raises:
        DataError: If the values are no typed columns.
    """
    try:
        return FeatureColumns(columns=tuple(FeatureColumn.model_validate(value) for value in values))
    except (ValidationError, TypeError):
        raise DataError(
            "wrong_type",
            f"expected typed columns in '{COLUMNS}', each with name, kind, unit and categories. Prepare the table "
            "again with `medfl prep table`.",
            key=COLUMNS,
        ) from None


def encode_rows(table: CsvTable, columns: FeatureColumns, missing: Sequence[str] = ()) -> np.ndarray:
    """Return the features of a table's rows, (N, F), float32. A missing number is NaN.

    Args:
        table: Table with all columns.
        columns: Typed columns.
        missing: Further words that mark a missing value.

    Raises:
        DataError: If a column is missing, or a cell of a number column is no number.
    """
    table.require([column.name for column in columns.columns])
    blocks = [_encode(table, column, missing) for column in columns.columns]
    return np.concatenate(blocks, axis=1).astype(np.float32)


def _encode(table: CsvTable, column: FeatureColumn, missing: Sequence[str]) -> np.ndarray:
    """Return the features of one column, (N, number of its features)."""
    cells = table.column(column.name, filled=False)
    absent = np.array(missing_cells(cells, missing), dtype=bool)
    if column.kind == "number":
        values = read_numbers(column.name, cells, table.numbers, missing)
        known = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        return np.stack([known, absent], axis=1)
    place = {category: number for number, category in enumerate(column.categories)}
    block = np.zeros((len(cells), len(column.features)))
    for row, cell in enumerate(cells):
        block[row, -1 if absent[row] else place.get(cell, len(place))] = 1.0
    return block
