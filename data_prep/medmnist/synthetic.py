"""Write a synthetic MedMNIST file with images of blood cells, for trying medfl without real data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.testing.synthetic import draw_cells, draw_stain
from medfl.utils.seeds import seed_of

FLAG = "syntheticmnist"
"""Name of the data set; its file is ``syntheticmnist.npz``."""

STAINS = 12
"""Number of stains (background and cell colours); each image has a random one."""


def write_release(
    folder: Path, train: int = 480, val: int = 40, test: int = 200, classes: int = 4, size: int = 28, seed: int = 0
) -> Path:
    """Write ``syntheticmnist.npz`` with the arrays of a MedMNIST file.

    Args:
        folder: Target folder; created if needed.
        train: Number of training images.
        val: Number of validation images.
        test: Number of test images.
        classes: Number of classes, 2 to 8; each image has a random class.
        size: Height and width in pixels, >= 8.
        seed: Seed of all random numbers.

    Returns:
        The file.
    """
    rng = np.random.default_rng(seed_of(seed, FLAG))
    stains = [draw_stain(rng) for _ in range(STAINS)]
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", train), ("val", val), ("test", test)):
        labels, which = rng.integers(classes, size=count), rng.integers(STAINS, size=count)
        images = np.empty((count, size, size, 3), np.uint8)
        for number, stain in enumerate(stains):
            if (chosen := which == number).any():
                images[chosen] = draw_cells(labels[chosen], size, stain, rng)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels.astype(np.uint8)[:, None]}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{FLAG}.npz"
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # numpy 1.26 has no allow_pickle here
    return path
