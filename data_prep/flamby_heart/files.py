"""The four processed files of the UCI Heart Disease data: fourteen numbers a row, ``?`` where one is missing."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.table import row_list
from medfl.errors import DataError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""In FLamby's order; the file of each is ``processed.NAME.data``."""

CELLS = 14
"""Numbers of a row; the last one is the diagnosis, 0 to 4."""

LEFT_OUT = (10, 11, 12)
"""Cells that most hospitals lack, from 0; FLamby leaves them out."""

CATEGORIES = (2, 6)
"""Cells that are numbers of kinds: of chest pain, and of an electrocardiogram at rest."""

NAMES = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
"""What the UCI's description calls the cells that stay."""

SEX = 1
"""The cell of the sex: 1 is male."""

AGAIN = "Take the file as the UCI Machine Learning Repository has it (data set 45, heart disease)."
"""What to do about a file that was changed."""


@dataclass(frozen=True)
class Hospital:
    """The complete rows of a hospital, in the order of its file.

    Attributes:
        numbers: (n, 10), float64: all cells but the diagnosis and those left out.
        labels: (n,), int64: 1 where there is heart disease.
        incomplete: Rows that were left out, since a number is missing.
    """

    numbers: np.ndarray
    labels: np.ndarray
    incomplete: int


def find_files(source: Path) -> dict[str, Path]:
    """Hospital to its file.

    Raises:
        DataError: If one is missing.
    """
    files = {name: source / f"processed.{name}.data" for name in HOSPITALS}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        raise DataError(
            "missing_file", f"expected {', '.join(missing)} in {source}, missing. {AGAIN}", folder=source, files=missing
        )
    return files


def read_hospital(path: Path) -> Hospital:
    """Read the file of a hospital.

    Raises:
        DataError: If it can't be read, or a row has other cells than fourteen numbers or ``?``.
    """
    try:
        lines = list(csv.reader(path.read_text(encoding="ascii").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "unreadable_file",
            f"{path} can't be read as text: {type(error).__name__}. {AGAIN}",
            path=path,
            cause=type(error).__name__,
        ) from None
    table = [[_number(cell) for cell in line] for line in lines if line]
    wrong = [number for number, row in enumerate(table, 1) if len(row) != CELLS or None in row]
    if wrong or not table:
        raise DataError(
            "invalid_value",
            f"expected rows of {CELLS} numbers, or ? where one is missing, in {path}; "
            f"{f'other ones in {row_list(wrong)}' if wrong else 'there are none'}. {AGAIN}",
            path=path,
            rows=wrong,
        )
    cells = np.delete(np.array(table, dtype=np.float64), LEFT_OUT, axis=1)
    complete = ~np.isnan(cells).any(axis=1)
    kept = cells[complete]
    return Hospital(kept[:, :-1], (kept[:, -1] > 0).astype(np.int64), int((~complete).sum()))


def features(hospitals: dict[str, Hospital]) -> tuple[list[str], dict[str, np.ndarray]]:
    """The features of each hospital's rows: the plain numbers, then a column for each kind but the first of a category.

    Kinds are those of all hospitals together, so that all have the same columns.

    Returns:
        Their names, and hospital to (n, F), float64; with the real files F is 13.
    """
    plain = [cell for cell in range(len(NAMES)) if cell not in CATEGORIES]
    everywhere = np.concatenate([hospital.numbers for hospital in hospitals.values()])
    kinds = [(cell, kind) for cell in CATEGORIES for kind in np.unique(everywhere[:, cell])[1:]]
    names = [NAMES[cell] for cell in plain] + [f"{NAMES[cell]}={kind:g}" for cell, kind in kinds]
    return names, {
        name: np.column_stack(
            [hospital.numbers[:, plain], *(hospital.numbers[:, cell] == kind for cell, kind in kinds)]
        ).astype(np.float64)
        for name, hospital in hospitals.items()
    }


def _number(cell: str) -> float | None:
    """A number, NaN where it is missing, None where the cell is neither."""
    text = cell.strip()
    if text == "?":
        return float("nan")
    try:
        number = float(text)
    except ValueError:
        return None
    return number if np.isfinite(number) else None
