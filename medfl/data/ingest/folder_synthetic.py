"""Write synthetic image files and a label table for tests and demos of ``medfl prep folder``.

File names and identifiers contain the word "secret", so that tests can check that they are not kept.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from medfl.utils.seeds import seed_of

HEAD = ("file", "diagnosis", "patient", "hospital", "part", "sex")
"""Column names of the label table."""

ROWS = (
    ("secret-sally-1.png", "benign", "SECRET-7", "north", "Train", "f"),
    ("sub/secret-tom.png", "malignant", "SECRET-3", "south", "val", "m"),
    ("secret-sally-2.png", "malignant", "SECRET-7", "north", "training", "f"),
    ("secret-uma.jpg", "benign", "SECRET-9", "south", "TEST", ""),
)
"""Rows of the label table, one for each image, with cells in the order of `HEAD`."""


def write_release(folder: Path, seed: int = 0) -> Path:
    """Write the folder ``images`` with four images of noise, and ``labels.csv``; return the folder.

    Args:
        folder: Folder to write into; it is created if it does not exist.
        seed: Seed of all random draws.
    """
    from PIL import Image

    (folder / "images" / "sub").mkdir(parents=True)
    rng = np.random.default_rng(seed_of(seed, "folder phantom"))
    for row in ROWS:
        Image.fromarray(rng.integers(0, 256, (20, 30), dtype=np.uint8)).save(folder / "images" / row[0])
    write_table(folder / "labels.csv")
    return folder


def write_table(path: Path, rows: Sequence[Sequence[str]] = ROWS, head: Sequence[str] = HEAD) -> Path:
    """Write a label table as CSV and return its path.

    Args:
        path: File to write.
        rows: Cells of each row.
        head: Column names.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return path
