"""Write a synthetic Fed-IXI release: FLamby's folders and table, and small volumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.utils.seeds import seed_of
from medfl_datasets.flamby_ixi.spec import OFFICIAL_COUNTS, SPLIT_TABLE, VOLUME_FOLDER


def write_release(folder: Path, count: int = 4, seed: int = 0) -> Path:
    """Write a release whose volumes show a bright ellipsoid as the brain in a dim head.

    Volumes have 13 x 9 x 10 voxels of 2 x 4 x 4 mm.

    Args:
        folder: Target folder; created if needed.
        count: Number of subjects of each of the three hospitals, >= 4. Every fourth subject of a hospital is in the
            test split.
        seed: Seed of all random numbers.

    Returns:
        `folder`.
    """
    import nibabel

    rng = np.random.default_rng(seed_of(seed, "flamby_ixi phantom"))
    places = np.indices((13, 9, 10)).reshape(3, -1).T
    lines = ["Patient ID,Manufacturer,Split"]
    for number in range(count * len(OFFICIAL_COUNTS)):
        hospital = number % len(OFFICIAL_COUNTS)
        name = f"IXI{number + 2:03d}-{list(OFFICIAL_COUNTS)[hospital]}-{9000 + number}"
        middle, radii = rng.uniform((5, 4, 4), (7, 5, 6)), rng.uniform((3.5, 2.5, 2.5), (5, 3.5, 4))
        brain = ((((places - middle) / radii) ** 2).sum(axis=1) < 1).reshape(13, 9, 10)
        grey = 300 * brain + 80 + rng.normal(0, 20, brain.shape)
        for part, word, values in (
            ("T1", "image", grey.astype(np.float32)),
            ("label", "label", brain.astype(np.uint8)),
        ):
            path = folder / "7kd5wj7v7p-3" / VOLUME_FOLDER / name / part / f"{name}_{word}.nii.gz"
            path.parent.mkdir(parents=True)
            nibabel.save(nibabel.Nifti1Image(values, np.diag([2.0, 4.0, 4.0, 1.0])), path)
        lines.append(f"{number + 2},{hospital},{'test' if number // len(OFFICIAL_COUNTS) % 4 == 3 else 'train'}")
    (folder / SPLIT_TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
