"""Synthetic images with a table of diagnoses, hospitals, ages and sexes, for tests of ``medfl prep folder``."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

HEAD = ("file", "diagnosis", "patient", "hospital", "age", "sex", "mask")


def write_images(folder: Path, count: int = 60) -> Path:
    """Write images and a table in which every seventh age is missing; return the table."""
    (folder / "images").mkdir(parents=True)
    generator = np.random.default_rng(0)
    rows = []
    for number in range(count):
        name = f"scan-{number:02d}.png"
        Image.fromarray(generator.integers(0, 255, (20, 20), dtype=np.uint8)).save(folder / "images" / name)
        age = "" if number % 7 == 0 else f"{generator.normal(60, 9):.1f}"
        diagnosis, hospital = ("benign", "malignant")[number % 2], ("north", "south")[number // 2 % 2]
        rows.append((name, diagnosis, f"P{number}", hospital, age, "fm"[generator.integers(2)], name))
    return write_table(folder / "labels.csv", rows)


def write_table(path: Path, rows: list[tuple[str, ...]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEAD, *rows])
    return path
