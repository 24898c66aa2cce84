"""Small federations over tables with noisy outcomes, whose models are to be calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import medfl
from medfl.data.datalists import Datalist, write_datalist
from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.objectives import Binary, Multiclass, Multilabel, Objective, Regression, Survival

NAMES = ["age", "grade", "size", "nodes"]


def write_noisy_cohort(
    folder: Path,
    objective: Objective,
    patients: int = 600,
    sites: int = 2,
    images: int = 1,
    val_fraction: float = 0.4,
    seed: int = 1,
) -> Path:
    """Write sites of a table whose outcomes depend on the features with noise, and return their folder.

    Args:
        folder: Folder for the pooled and the partitioned data.
        objective: Objective of the outcomes.
        patients: Number of patients.
        sites: Number of sites.
        images: Number of rows of each patient.
        val_fraction: Share of the patients in the validation sets.
        seed: Seed of the features and outcomes.
    """
    rng = np.random.default_rng(seed)
    units = rng.normal(size=(patients * images, len(NAMES))).astype(np.float32)
    score = units @ np.array([1.0, -1.0, 0.5, 0.0])
    noisy = score + rng.normal(size=len(score))
    targets: list[Any]
    if isinstance(objective, Binary):
        targets = (noisy > 1).astype(int).tolist()
    elif isinstance(objective, Multiclass):
        targets = np.digitize(noisy, [-0.6, 0.6]).tolist()
    elif isinstance(objective, Regression):
        targets = (10 + 3 * np.stack([noisy, -noisy], axis=1)[:, : objective.dimensions]).tolist()
    elif isinstance(objective, Survival):
        times = rng.exponential(np.exp(-score)) + 1e-3
        targets = [[float(min(time, 2)), int(time < 2)] for time in times]
    else:
        targets = [[float(value > 0), float(value < 1)] for value in noisy]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pool").mkdir()
    np.save(folder / "pool" / "images.npy", units)
    key = "label" if objective.has_class_labels else "target"
    records = [{"image": row, "subject_id": f"s{row // images}", key: value} for row, value in enumerate(targets)]
    datalist = Datalist(
        "noisy", "images.npy", 2, splits={"training": records}, objective=objective.facts, extra={"features": NAMES}
    )
    write_datalist(folder / "pool", datalist)
    plan = PartitionPlan("iid", sites, test_fraction=0.3, val_fraction=val_fraction, server_test="none")
    partition(folder / "pool", folder / "data", plan, iid)
    return folder / "data"


def train_noisy(folder: Path, objective: Objective, method: str = "fedavg", **cohort: Any) -> Path:
    """Train on such sites, and return the run folder."""
    data = write_noisy_cohort(folder, objective, **cohort)
    options = {"rounds": 2, "epochs": 4, "batch_size": 8, "progress": False}
    medfl.run("tabular", data, out=folder / "run", method=method, **options)
    return folder / "run"


OBJECTIVES: dict[str, Objective] = {
    "binary": Binary(),
    "multiclass": Multiclass(3),
    "multilabel": Multilabel(2),
    "regression": Regression(2),
    "survival": Survival(),
}
"""Objectives by name."""
