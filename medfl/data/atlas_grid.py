"""One grid for all volumes of a data set, and how a volume gets onto it: by the affines, in mm.

The common grid is a cube of MNI152 space that holds the brain: 192 mm a side, centred at (0, -18, 8) mm, so that 48
voxels a side have 4 mm each. Its voxels are cubes, so that a rotation of the array is a rotation of the head, and it is
as wide to the left as to the right, so that a mirrored array is a mirrored head. Its axes run from left to right, back
to front and feet to head, as those of `medfl.data.images`.

- Maps (`onto`) are interpolated trilinearly; outside a map there is 0. Where the grid is coarser than the map, it is
  sampled on a finer grid, whose voxels are then averaged, so that no voxel is skipped.
- Labels (`labels_onto`) are those of the nearest voxel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medfl.data.atlas_volumes import Volume, voxel_edges
from medfl.errors import SettingsError

SPAN_MM = 192.0
"""Side of the cube that the common grid covers."""

CENTRE_MM = (0.0, -18.0, 8.0)
"""Centre of that cube in MNI152 space: to the right, to the front, up."""

SIZES = (4, 256)
"""Smallest and largest number of voxels a side."""

FINEST = 4
"""Samples that are averaged along each edge of a voxel, at most."""


@dataclass(frozen=True)
class Grid:
    """Where the voxels of an array lie.

    Attributes:
        shape: (X, Y, Z).
        affine: Shape (4, 4), from places in the array to mm.
    """

    shape: tuple[int, int, int]
    affine: np.ndarray


def common_grid(size: int) -> Grid:
    """The cube of MNI152 space that all maps of a data set are put on.

    Args:
        size: Voxels a side, 4 to 256.

    Raises:
        SettingsError: If `size` is out of its range.
    """
    if not SIZES[0] <= size <= SIZES[1]:
        raise SettingsError(f"expected a size of {SIZES[0]} to {SIZES[1]} voxels a side, got {size}")
    edge = SPAN_MM / size
    affine = np.diag([edge, edge, edge, 1.0])
    affine[:3, 3] = np.array(CENTRE_MM) - SPAN_MM / 2 + edge / 2
    return Grid((size, size, size), affine)


def onto(volume: Volume, grid: Grid) -> np.ndarray:
    """Resample a map, trilinearly; see the module.

    Args:
        volume: The map; 0 is what lies outside of it.
        grid: Where to.

    Returns:
        Shape of the grid, float32.
    """
    parts = _parts(volume, grid)
    to_source = np.linalg.inv(volume.affine) @ _finer(grid.affine, parts)
    steps = np.diag(to_source)[:3]
    parallel = np.allclose(to_source[:3, :3], np.diag(steps), atol=1e-9)
    return (_along_axes if parallel else _anyhow)(volume.values, to_source, grid.shape, parts)


def labels_onto(volume: Volume, grid: Grid) -> np.ndarray:
    """The label of the nearest voxel; 0 outside.

    Args:
        volume: Labels, whole numbers.
        grid: Where to.

    Returns:
        Shape of the grid, int32.
    """
    labels = np.zeros(grid.shape, np.int32)
    places = np.indices(grid.shape).reshape(3, -1)
    nearest = np.floor(_mapped(np.linalg.inv(volume.affine) @ grid.affine, places) + 0.5).astype(np.int64)
    inside = ((nearest >= 0) & (nearest < np.array(volume.values.shape)[:, None])).all(axis=0)
    labels.reshape(-1)[inside] = volume.values[tuple(nearest[:, inside])]
    return labels


def share_inside(mask: np.ndarray, affine: np.ndarray, grid: Grid) -> float:
    """How much of a volume's marked voxels lies in a grid, in [0, 1].

    Args:
        mask: Shape (X, Y, Z), bool; at least one voxel is marked.
        affine: Of the volume.
        grid: Where they should lie.
    """
    places = _mapped(np.linalg.inv(grid.affine) @ affine, np.array(np.nonzero(mask)))
    ends = np.array(grid.shape)[:, None] - 0.5
    return float(((places >= -0.5) & (places <= ends)).all(axis=0).mean())


def _along_axes(values: np.ndarray, to_source: np.ndarray, shape: tuple[int, ...], parts: int) -> np.ndarray:
    """Where the axes of both are parallel: one axis after the other, which is many times faster than `_anyhow`."""
    for length, step, start in zip(shape, np.diag(to_source), to_source[:3, 3], strict=False):
        places = start + step * np.arange(length * parts)
        near = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(values.shape[0])))
        weights = near.reshape(length, parts, -1).mean(axis=1, dtype=np.float64).astype(np.float32)
        values = np.tensordot(values, weights, axes=(0, 1))  # the next axis comes first, the new one last
    return np.ascontiguousarray(values, dtype=np.float32)


def _anyhow(values: np.ndarray, to_source: np.ndarray, shape: tuple[int, ...], parts: int) -> np.ndarray:
    from scipy import ndimage

    fine = tuple(length * parts for length in shape)
    options = {"order": 1, "mode": "grid-constant", "output": np.float32}
    sampled = ndimage.affine_transform(values, to_source[:3, :3], to_source[:3, 3], output_shape=fine, **options)
    x, y, z = shape
    mean: np.ndarray = sampled.reshape(x, parts, y, parts, z, parts).mean(axis=(1, 3, 5))
    return mean


def _mapped(matrix: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Places (3, n) through an affine (4, 4)."""
    moved: np.ndarray = matrix[:3, :3] @ places + matrix[:3, 3:]
    return moved


def _parts(volume: Volume, grid: Grid) -> int:
    """Samples along each edge of the grid's voxels, so that no voxel of the volume is skipped."""
    ratio = voxel_edges(grid.affine).max() / voxel_edges(volume.affine).min()
    return int(np.clip(np.ceil(ratio - 1e-6), 1, FINEST))


def _finer(affine: np.ndarray, parts: int) -> np.ndarray:
    """The affine of a grid whose voxels are divided into parts along each edge."""
    inner = np.diag([1 / parts, 1 / parts, 1 / parts, 1.0])
    inner[:3, 3] = (1 / parts - 1) / 2
    fine: np.ndarray = affine @ inner
    return fine
