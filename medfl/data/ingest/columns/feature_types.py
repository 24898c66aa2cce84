"""Decide the type of each column of a table that becomes a feature: number or category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from medfl.data.ingest.columns.cells import is_number_column, missing_cells
from medfl.data.ingest.columns.class_names import order_classes
from medfl.data.ingest.columns.identifier_guard import refuse_identifiers
from medfl.data.ingest.columns.target_option import ColumnWithUnit, split_unit
from medfl.data.table import CsvTable
from medfl.errors import DataError, SettingsError
from medfl.records.feature_columns import FeatureColumn, FeatureColumns

MIN_CATEGORY_ROWS = 5
"""Minimum number of rows of a category with a feature of its own; rarer ones share the feature ``other``."""

OTHER = "other"
"""Category that never has a feature of its own, in lower case."""


def choose_columns(
    table: CsvTable,
    number: Sequence[str],
    category: Sequence[str],
    excluded: Collection[str],
    missing: Sequence[str] = (),
) -> FeatureColumns:
    """Return the typed columns of the features.

    If the user names no column, all columns that are not excluded are used: a column of numbers with more than two
    values is a number, and every other column a category. Columns with one value are left out.

    Args:
        table: Table of the cases.
        number: Number columns that the user names, each possibly with a unit in brackets.
        category: Category columns that the user names.
        excluded: Columns that are no features: target, patient, site, split, and columns to ignore.
        missing: Further words that mark a missing value.

    Raises:
        DataError: If a column is missing or looks like an identifier, a number column holds other cells, or no column
            is left.
        SettingsError: If a column is named twice, or is excluded.
    """
    numbers = [split_unit(word, table) for word in number]
    table.require(list(category))
    named = [column.name for column in numbers] + list(category)
    if wrong := sorted({name for name in named if name in excluded or named.count(name) > 1}):
        listed = ", ".join(f"'{name}'" for name in wrong)
        raise SettingsError(
            "duplicate_column",
            f"expected each column in one option, got {listed} more than once. A target, patient, site or split is no "
            "feature.",
            columns=wrong,
        )
    if named:
        chosen = [_number_column(table, column, missing) for column in numbers]
        chosen += [_category_column(table, name, missing) for name in category]
    else:
        names = [name for name in table.columns if name and name not in excluded]
        chosen = [
            _inferred_column(table, name, missing) for name in names if len(set(_known(table, name, missing))) > 1
        ]
    if not chosen:
        raise DataError(
            "no_features",
            f"expected columns with at least two different values in {table.path} beside target, patient, site and "
            "split, there are none. Name them with --number and --category.",
            path=table.path,
        )
    return FeatureColumns(columns=tuple(chosen))


def _inferred_column(table: CsvTable, name: str, missing: Sequence[str]) -> FeatureColumn:
    cells = _known(table, name, missing)
    if is_number_column(cells) and len(set(cells)) > 2:
        return _number_column(table, split_unit(name, table), missing)
    return _category_column(table, name, missing)


def _number_column(table: CsvTable, column: ColumnWithUnit, missing: Sequence[str]) -> FeatureColumn:
    cells = _known(table, column.name, missing)
    refuse_identifiers(column.name, cells, hint=_HINT)
    if len(set(cells)) < 3:
        raise DataError(
            "too_few_values",
            f"expected at least three different numbers in the column '{column.name}', got {len(set(cells))}. Name a "
            "column of two values with --category, as the mean of its values would disclose how often each occurs.",
            column=column.name,
            minimum=3,
            found=len(set(cells)),
        )
    return _make_column(name=column.name, kind="number", unit=column.unit)


def _category_column(table: CsvTable, name: str, missing: Sequence[str]) -> FeatureColumn:
    cells = _known(table, name, missing)
    refuse_identifiers(name, cells, hint=_HINT)
    counts = Counter(cells)
    order = order_classes(cells)
    frequent = [cell for cell in order if counts[cell] >= MIN_CATEGORY_ROWS and cell.casefold() != OTHER]
    return _make_column(name=name, kind="category", categories=tuple(frequent))


def _make_column(name: str, kind: Literal["number", "category"], **values: Any) -> FeatureColumn:
    """Return a typed column.

    Raises:
        DataError: If its name, its unit or a category is no plain text.
    """
    try:
        return FeatureColumn(name=name, kind=kind, **values)
    except ValidationError:
        raise DataError(
            "unsafe_name",
            f"expected plain texts of at most 200 characters, which begin with none of '$', '@' and '%', as name, unit "
            f"and categories of the column {name!r}. Rename them in the table.",
            column=name,
        ) from None


def _known(table: CsvTable, name: str, missing: Sequence[str]) -> list[str]:
    """Return the cells of a column that are not missing."""
    cells = table.column(name, filled=False)
    absent = missing_cells(cells, missing)
    return [cell for cell, is_absent in zip(cells, absent, strict=True) if not is_absent]


_HINT = ", give it as --group-column if it names the patient, or leave it out (--ignore-column of medfl prep table)"
"""Advice for a column that looks like an identifier."""
