"""Write a synthetic Fed-LIDC-IDRI release: FLamby's folders and table, and small volumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.utils.seeds import seed_of
from medfl_datasets.flamby_lidc_idri.spec import IMAGE_FILE, MASK_FILE, OFFICIAL_COUNTS, SPLIT_TABLE


def write_release(folder: Path, count: int = 2, seed: int = 0) -> Path:
    """Write a release with volumes of about 14 x 14 x 12 voxels of 1 mm; all but the first have a dense nodule.

    Args:
        folder: Target folder; created if needed.
        count: Number of scans of each of the four manufacturers, >= 2; the last scan of each manufacturer is in the
            test split. One more row of the table has no scan.
        seed: Seed of all random numbers.

    Returns:
        `folder`.
    """
    import nibabel

    rng = np.random.default_rng(seed_of(seed, "flamby_lidc_idri phantom"))
    lines = ["SeriesInstanceUID,Manufacturer,Split\n1.3.SECRET.999,0,train"]
    for number in range(count * len(OFFICIAL_COUNTS)):
        shape = (14 + number % 3, 14, 12 + number % 2)
        middle = np.array(shape)[:, None, None, None] / 2
        mask = ((np.indices(shape) - middle) ** 2).sum(axis=0) < rng.uniform(3, 9) * (number > 0)
        values = np.where(mask, 60.0, -850.0) + rng.normal(0, 30, shape)
        scan = folder / f"1.3.SECRET.{number:03d}"
        scan.mkdir(parents=True)
        for name, voxels in ((IMAGE_FILE, values.astype(np.float32)), (MASK_FILE, mask.astype(np.uint8))):
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), scan / name)
        manufacturer, own = divmod(number, count)
        lines.append(f"{scan.name},{manufacturer},{'test' if own == count - 1 else 'train'}")
    (folder / SPLIT_TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
