"""Write synthetic files of four hospitals in the format of the UCI Heart Disease data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from medfl.utils.seeds import seed_of
from medfl_datasets.flamby_heart.files import CELL_COUNT, HOSPITALS

ROWS = {"cleveland": 40, "hungarian": 30, "switzerland": 12, "va": 20}
"""Maps each hospital to its number of rows; a few rows are incomplete."""


def write_release(folder: Path, rows: Mapping[str, int] = ROWS, seed: int = 0) -> Path:
    """Write the four files.

    The risk of heart disease rises with age. Almost all patients of Switzerland have heart disease.

    Args:
        folder: Target folder; created if needed.
        rows: Maps each hospital to its number of rows, each >= 8.
        seed: Seed of all random numbers.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in HOSPITALS:
        rng = np.random.default_rng(seed_of(seed, "flamby_heart phantom", name))
        lines = [_line(row, name == "switzerland", rng) for row in range(rows[name])]
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n", encoding="ascii")
    return folder


def _line(row: int, all_ill: bool, rng: np.random.Generator) -> str:
    cells = [str(number) for number in rng.integers(0, 200, CELL_COUNT)]
    age = int(rng.integers(30, 75))
    ill = rng.random() < (age - 25) / 50
    cells[0], cells[1], cells[2], cells[6] = f"{age}.0", str(row % 2), str(1 + row % 4), str(row % 3)
    cells[10] = cells[11] = cells[12] = "?"
    cells[-1] = str(int(rng.integers(1, 5))) if row == 0 or (row > 1 and (ill or all_ill)) else "0"
    if row % 9 == 5:
        cells[4] = "?"
    return ",".join(cells)
