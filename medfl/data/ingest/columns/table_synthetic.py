"""Write a synthetic clinical table for tests and demos of ``medfl prep table``."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from medfl.utils.seeds import seed_of

HEAD = ("patient", "hospital", "age [years]", "psa", "sex", "stage", "effusion", "nodule", "months", "death", "outcome")
"""Column names of the table."""


def write_release(folder: Path, seed: int = 0, rows: int = 80) -> Path:
    """Write ``clinical.csv`` with made-up patients of two hospitals; return the folder.

    Columns of each kind of target are among them. Some cells are empty, and identifiers contain the word "secret".

    Args:
        folder: Folder to write into; it is created if it does not exist.
        seed: Seed of all random draws.
        rows: Number of patients.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed_of(seed, "synthetic table"))
    with (folder / "clinical.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        for number in range(rows):
            age, psa = rng.normal(62, 11), rng.lognormal(1.0, 0.8)
            stage = rng.choice(["I", "II", "III", "IV"])
            risk = (age - 62) / 11 + np.log(psa) - 1 + (stage in ("III", "IV"))
            writer.writerow(
                [
                    f"secret-{number:03d}",
                    ("north", "south")[number % 2],
                    "" if number % 9 == 4 else f"{age:.0f}",
                    "" if number % 7 == 3 else f"{psa:.2f}",
                    rng.choice(["f", "m"]),
                    stage,
                    "" if number % 5 == 2 else int(risk + rng.normal() > 0),
                    int(risk + rng.normal() > 0.5),
                    f"{1 + 40 * np.exp(-risk) * rng.exponential():.1f}",
                    int(rng.random() < 0.7),
                    ("relapse", "cured")[int(risk + rng.normal() > 0)],
                ]
            )
    return folder
