"""Read brain maps from NIfTI files and normalise them.

A brain map is a volume with one number for each voxel, computed from a functional MRI scan; 0 marks voxels outside of
the brain. All maps of a data set are resampled to one common grid in MNI152 space.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.data.readers.volumes import SpatialGrid, read_volume, resample_map, share_inside
from medfl.errors import DataError

MIN_SHARE_INSIDE = 0.9
"""Minimum share of a map's brain voxels that lie inside the common grid; in published maps it is above 0.99."""


SUFFIXES = (".nii.gz", ".nii")
"""File name suffixes of maps."""


def read_map(path: Path, grid: SpatialGrid) -> np.ndarray:
    """Read a map, normalise its intensities and resample it to a grid.

    Args:
        path: A ``.nii`` or ``.nii.gz`` file.
        grid: Target grid.

    Returns:
        Array of the grid's shape, float32.

    Raises:
        DataError: If the file can't be read, a value is not finite, or all voxels of the brain are equal. Also if less
            than the share `MIN_SHARE_INSIDE` of the brain lies inside the grid.
    """
    volume = read_volume(path)
    values = normalised(volume.values)
    share = share_inside(volume.values != 0, volume.affine, grid)
    if share < MIN_SHARE_INSIDE:
        raise DataError(
            "different_space",
            "a part of the brain lies outside the common grid: the map is not in MNI152 space, or its affine is wrong",
        )
    return resample_map(type(volume)(values, volume.affine), grid)


def normalised(values: np.ndarray) -> np.ndarray:
    """Scale the non-zero voxels of a map to mean 0 and standard deviation 1; the other voxels stay 0.

    Args:
        values: Map of any shape.

    Returns:
        Array of the same shape, float32.

    Raises:
        DataError: If a value is not finite, no voxel differs from 0, or all non-zero voxels are equal.
    """
    if not np.isfinite(values).all():
        raise DataError("not_finite", "the map has values that are not finite (NaN or infinite)")
    brain = values != 0
    inside = values[brain].astype(np.float64)
    spread = inside.std() if len(inside) and inside.min() < inside.max() else 0.0
    if not 0 < spread < np.inf:
        raise DataError("constant_image", "the map is constant: it says nothing about the brain")
    result = np.zeros(values.shape, np.float32)
    result[brain] = (inside - inside.mean()) / spread
    return result
