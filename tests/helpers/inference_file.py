"""The file of predictions that a bundle's inference writes, read by the names of its columns."""

import csv
from pathlib import Path

import numpy as np

TEXTS = ("case", "predicted_class", "predicted_findings", "decision_rule", "unit")


def read_inference(path: Path) -> list[dict[str, str]]:
    """The rows, by column."""
    with path.open() as file:
        return list(csv.DictReader(file))


def cases(path: Path) -> list[str]:
    """The names of the cases."""
    return [row["case"] for row in read_inference(path)]


def numbers(path: Path) -> np.ndarray:
    """The predicted numbers, (N, K)."""
    return np.array(
        [[float(value) for name, value in row.items() if name not in TEXTS] for row in read_inference(path)]
    )
