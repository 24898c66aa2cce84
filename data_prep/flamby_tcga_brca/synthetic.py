"""Write synthetic files in the format of FLamby's Fed-TCGA-BRCA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from medfl.utils.seeds import seed_of
from medfl_datasets.flamby_tcga_brca.files import CLINICAL_TABLE, FEATURE_COUNT, FOLD_TABLE

ROWS = (20, 12, 12, 10, 10, 8)
"""Number of patients of each of the six regions; every fourth patient is in the test fold."""

UNUSED = 3
"""Number of patients in the clinical table that are in no fold."""


def write_release(folder: Path, rows: Sequence[int] = ROWS, seed: int = 0) -> Path:
    """Write both files; the larger the first feature (the age), the shorter the survival time.

    Patient names contain SECRET.

    Args:
        folder: Target folder; created if needed.
        rows: Number of patients of each of the six regions, each >= 4.
        seed: Seed of all random numbers.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed_of(seed, "flamby_tcga_brca phantom"))
    regions = np.repeat(np.arange(len(rows)), rows)
    names = [f"TCGA-SECRET-{number:04d}" for number in range(len(regions) + UNUSED)]
    header = ["pid", "age_at_index", *(f'"kind {number}, made up"' for number in range(1, FEATURE_COUNT)), "E", "T"]
    table = [",".join(header)]
    for number in rng.permutation(len(names)):
        age, kinds = int(rng.integers(26, 91)), rng.integers(0, 2, FEATURE_COUNT - 1)
        time = 0.0 if number == 1 else float(1 + rng.integers(0, 40 * (100 - age)))
        event = 0.0 if number == 1 else float(rng.random() < 0.4)
        table.append(",".join(map(str, [names[number], age, *kinds.tolist(), event, time])))
    split = ["pid,fold,fold2"]
    for number, region in enumerate(regions.tolist()):
        word = "test" if number % 4 == 3 else "train"
        split.append(f"{names[number]},{word},{word}_{region}")
    (folder / CLINICAL_TABLE).write_text("\n".join(table) + "\n", encoding="utf-8")
    (folder / FOLD_TABLE).write_text("\n".join(split) + "\n", encoding="utf-8")
    return folder
