"""Files in the layout of MedMNIST, made for a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_npz(path: Path, shape=(28, 28, 3), columns: bool = True, **change) -> Path:
    """Random images, 10 for training, 3 for validation, 4 for tests; `change` replaces arrays, None removes one."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("test", 4), ("train", 10), ("val", 3)):
        labels = (np.arange(size) % 8).astype(np.uint8)
        arrays[f"{part}_images"] = rng.integers(0, 256, (size, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = labels[:, None] if columns else labels
    arrays |= change
    np.savez_compressed(path, **{name: value for name, value in arrays.items() if value is not None})
    return path
