"""Write a synthetic task of the Medical Segmentation Decathlon: two adjacent bodies in volumes of three scanners."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from medfl.utils.rng import seed_of
from medfl_datasets.decathlon.files import TASK_FILE

LABELS = {"0": "background", "1": "front", "2": "back"}
"""Maps each mask value to the name of its structure, as ``dataset.json`` states them."""

SCANNERS = {"A": 200.0, "B": 3000.0, "C": 400000.0}
"""Maps each scanner to its largest voxel value. The values have no unit, as in MRI."""

TABLE = "cases.csv"
"""Name of the table, which has the columns case, scanner and patient."""


def write_release(folder: Path, cases: int = 7, edge: int = 12, seed: int = 0) -> Path:
    """Write a task: volumes of about `edge` voxels of 1 mm, and a table beside them.

    The affine of every second volume reverses an axis.

    Args:
        folder: Target folder; created if needed.
        cases: Number of volumes with masks; the list also names one volume without a mask.
        edge: Edge of the smallest volume in voxels, >= 8; others have up to two voxels more along each axis.
        seed: Seed of all random numbers.

    Returns:
        `folder`.
    """
    import nibabel

    rng = np.random.default_rng(seed_of(seed, "decathlon phantom"))
    for part in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    rows, training = [], []
    for number in range(cases):
        shape = tuple((edge + rng.integers(0, 3, 3)).tolist())
        mask = _draw_mask(shape, rng)
        scanner = list(SCANNERS)[number % len(SCANNERS)]
        grey = np.array([0.2, 0.55, 0.9])[mask] + rng.normal(0, 0.05, shape)
        values = (grey.clip(0, 1) * SCANNERS[scanner]).astype(np.float32)
        affine = np.diag([1.0, -1.0, 1.0, 1.0]) if number % 2 else np.eye(4)
        name = f"secret_{number:03d}.nii.gz"
        nibabel.save(nibabel.Nifti1Image(values[:, ::-1] if number % 2 else values, affine), folder / "imagesTr" / name)
        turned = (mask[:, ::-1] if number % 2 else mask).astype(np.uint8)
        nibabel.save(nibabel.Nifti1Image(turned, affine), folder / "labelsTr" / name)
        training.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
        rows.append({"case": name.removesuffix(".nii.gz"), "scanner": scanner, "patient": f"SECRET-{number // 2}"})
    values = {
        "name": "made up",
        "licence": "CC0 1.0",
        "modality": {"0": "MRI"},
        "labels": LABELS,
        "training": training,
        "test": ["./imagesTs/secret_900.nii.gz"],
    }
    (folder / TASK_FILE).write_text(json.dumps(values, indent=1), encoding="utf-8")
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


def _draw_mask(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw the mask of an ellipsoid that is divided along the second axis into a front (1) and a back (2)."""
    middle = np.array(shape) / 2 + rng.uniform(-1, 1, 3)
    radii = np.array(shape) * rng.uniform(0.25, 0.33, 3)
    places = np.indices(shape) + 0.5
    inside = (((places - middle[:, None, None, None]) / radii[:, None, None, None]) ** 2).sum(axis=0) < 1
    mask: np.ndarray = np.where(inside, np.where(places[1] > middle[1], 1, 2), 0)
    return mask
