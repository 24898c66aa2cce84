"""Read the four processed files of the UCI Heart Disease data: 14 numbers in each row, ``?`` for a missing one."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.table import row_list
from medfl.errors import DataError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""Hospitals in FLamby's order. The file of each is ``processed.NAME.data``."""

CELL_COUNT = 14
"""Number of cells in a row. The last cell is the diagnosis, 0 to 4."""

DROPPED_CELLS = (10, 11, 12)
"""Indices of the cells that most hospitals lack. FLamby drops them."""

CATEGORICAL_CELLS = (2, 6)
"""Indices of the categorical cells: type of chest pain, and result of the resting electrocardiogram."""

FEATURE_NAMES = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
"""Names of the ten cells that remain without the diagnosis and `DROPPED_CELLS`, as in the UCI description."""

SEX_COLUMN = 1
"""Index of the sex in `FEATURE_NAMES`; the value 1 is male."""

FILES_HINT = "Take the file as the UCI Machine Learning Repository has it (data set 45, heart disease)."
"""Advice in messages about a file that was changed."""


@dataclass(frozen=True)
class Hospital:
    """Rows of a hospital in which no used cell is missing, in the order of the file.

    Attributes:
        numbers: All cells except the diagnosis and the dropped ones, shape (n, 10), float64.
        labels: 1 for heart disease, 0 for none, shape (n,), int64.
        incomplete: Number of rows that are excluded because a number is missing.
    """

    numbers: np.ndarray
    labels: np.ndarray
    incomplete: int


def find_files(source: Path) -> dict[str, Path]:
    """Find the file of each hospital.

    Returns:
        Maps each of `HOSPITALS` to its file.

    Raises:
        DataError: If a file is missing.
    """
    files = {name: source / f"processed.{name}.data" for name in HOSPITALS}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        raise DataError(
            "missing_file",
            f"expected {', '.join(missing)} in {source}, missing. {FILES_HINT}",
            folder=source,
            files=missing,
        )
    return files


def read_hospital(path: Path) -> Hospital:
    """Read the file of a hospital.

    Raises:
        DataError: If the file can't be read, or a row does not consist of 14 cells with a number or ``?``.
    """
    try:
        lines = list(csv.reader(path.read_text(encoding="ascii").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "unreadable_file",
            f"{path} can't be read as text: {type(error).__name__}. {FILES_HINT}",
            path=path,
            cause=type(error).__name__,
        ) from None
    table = [[_parse_cell(cell) for cell in line] for line in lines if line]
    wrong = [number for number, row in enumerate(table, 1) if len(row) != CELL_COUNT or None in row]
    if wrong or not table:
        raise DataError(
            "invalid_value",
            f"expected rows of {CELL_COUNT} numbers, or ? where one is missing, in {path}; "
            f"{f'other ones in {row_list(wrong)}' if wrong else 'there are none'}. {FILES_HINT}",
            path=path,
            rows=wrong,
        )
    cells = np.delete(np.array(table, dtype=np.float64), DROPPED_CELLS, axis=1)
    complete = ~np.isnan(cells).any(axis=1)
    kept = cells[complete]
    return Hospital(kept[:, :-1], (kept[:, -1] > 0).astype(np.int64), int((~complete).sum()))


def build_features(hospitals: dict[str, Hospital]) -> tuple[list[str], dict[str, np.ndarray]]:
    """Build the feature vectors: the numeric cells, then a 0/1 column for each category but the first of its cell.

    Categories are collected from all hospitals, so that all hospitals have the same columns.

    Returns:
        Names of the F features, and a mapping from each hospital to its features, shape (n, F) for n rows, float64. F
        is 13 for the real files.
    """
    plain = [cell for cell in range(len(FEATURE_NAMES)) if cell not in CATEGORICAL_CELLS]
    everywhere = np.concatenate([hospital.numbers for hospital in hospitals.values()])
    kinds = [(cell, kind) for cell in CATEGORICAL_CELLS for kind in np.unique(everywhere[:, cell])[1:]]
    names = [FEATURE_NAMES[cell] for cell in plain] + [f"{FEATURE_NAMES[cell]}={kind:g}" for cell, kind in kinds]
    return names, {
        name: np.column_stack(
            [hospital.numbers[:, plain], *(hospital.numbers[:, cell] == kind for cell, kind in kinds)]
        ).astype(np.float64)
        for name, hospital in hospitals.items()
    }


def _parse_cell(cell: str) -> float | None:
    """Parse a cell: a number, NaN for ``?``, or None if the cell is neither."""
    text = cell.strip()
    if text == "?":
        return float("nan")
    try:
        number = float(text)
    except ValueError:
        return None
    return number if np.isfinite(number) else None
