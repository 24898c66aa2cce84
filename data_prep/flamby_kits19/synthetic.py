"""Write a synthetic Fed-KiTS19 release: FLamby's folders and table, and small volumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.utils.seeds import seed_of
from medfl_datasets.flamby_kits19.spec import IMAGE_FILE, MASK_FILE, OFFICIAL_COUNTS, SPLIT_TABLE

AFFINE = np.array([[0, 0, -1.0, 0], [0, -1.0, 0, 0], [-2.0, 0, 0, 0], [0, 0, 0, 1]])
"""Affine from voxels to millimetres: slices run along the first axis, as in the release, and are 2 mm apart."""


def write_release(folder: Path, count: int = 2, seed: int = 0) -> Path:
    """Write a release: a bright kidney with a tumour at its lower end in volumes of about 12 x 20 x 20 voxels.

    Args:
        folder: Target folder; created if needed.
        count: Number of cases of each of the six sites, >= 2; the last case of each site is in the test split. One more
            case is in no row of the table.
        seed: Seed of all random numbers.

    Returns:
        `folder`.
    """
    import nibabel

    rng = np.random.default_rng(seed_of(seed, "flamby_kits19 phantom"))
    lines = ["case_ids,site_ids,train_test_split,train_test_split_silo"]
    for number in range(count * len(OFFICIAL_COUNTS) + 1):
        shape = (12 + number % 3, 20, 20)
        axes = np.indices(shape)
        kidney = (((axes - np.array([6, 10, 10])[:, None, None, None]) / rng.uniform(3, 5)) ** 2).sum(axis=0) < 1
        mask = np.where(kidney, np.where(axes[0] > 7, 2, 1), 0).astype(np.uint8)
        values = np.array([-60.0, 180.0, 90.0])[mask] + rng.normal(0, 10, shape)
        case = folder / "data" / f"case_SECRET{number:02d}"
        case.mkdir(parents=True)
        nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), AFFINE), case / IMAGE_FILE)
        nibabel.save(nibabel.Nifti1Image(mask, AFFINE), case / MASK_FILE)
        site, own = divmod(number, count)
        if site < len(OFFICIAL_COUNTS):
            word = "test" if own == count - 1 else "train"
            lines.append(f"{case.name},{site},{word},{word}_{site}")
    (folder / SPLIT_TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
