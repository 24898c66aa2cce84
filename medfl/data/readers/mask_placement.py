"""Place the mask of a volume on the grid of its image: copy it voxel by voxel, or resample it to the nearest voxel.

The rules are those of `medfl.data.readers.segmentations`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from medfl.data.readers.volumes import SpatialGrid, Volume, resample_labels, voxel_edges
from medfl.errors import DataError

GRID_TOLERANCE_MM = 0.05
"""Largest distance, in millimetres, of a corner of a mask's grid from the voxel grid of its image."""

MAX_PLACE = 1e9
"""Largest distance from the image, in voxels, that an error for a mask outside of it states."""


@dataclass(frozen=True)
class VolumeMask:
    """Mask of a volume on the grid of its image.

    Attributes:
        values: Structure number of each voxel, 0 outside, uint8, (D, H, W).
        is_resampled: Whether the mask was on another grid.
    """

    values: np.ndarray
    is_resampled: bool


def place_mask(
    mask: Volume, grid: SpatialGrid, resample: bool, check_position: Callable[[], None] = lambda: None
) -> VolumeMask:
    """Return a mask on the grid of an image.

    Args:
        mask: Structure numbers, uint8, and their position.
        grid: Grid of the image.
        resample: Whether a mask on another grid is resampled.
        check_position: Function that raises if a file does not state its position; called for masks on another grid.

    Raises:
        DataError: If the mask lies on another grid and is not to be resampled, has no position, reaches beyond its
            image, or would lose a structure.
    """
    to_grid = np.linalg.inv(grid.affine) @ mask.affine
    whole = np.round(to_grid)
    turn = np.abs(whole[:3, :3])
    ends = [(0, length - 1) for length in mask.values.shape]
    corners = np.array([[x, y, z, 1] for x in ends[0] for y in ends[1] for z in ends[2]]).T
    distances = ((to_grid - whole) @ corners)[:3] * voxel_edges(grid.affine)[:, None]
    aligned = (turn.sum(axis=0) == 1).all() and (turn.sum(axis=1) == 1).all()
    aligned = bool(aligned and np.abs(distances).max() <= GRID_TOLERANCE_MM)
    if not aligned and not resample:
        raise DataError(
            "misaligned_mask",
            "the mask lies on another grid than its image: their voxels differ in size, direction or place. Resample "
            "the mask to its image, or export both from one series.",
        )
    if not aligned:
        check_position()
    _check_inside(mask, to_grid, grid)
    if aligned:
        return VolumeMask(_copy(mask.values, whole, grid.shape), is_resampled=False)
    values = _resample(mask, grid)
    lost = set(np.unique(mask.values)) - {0, *np.unique(values)}
    if lost:
        raise lost_structure_error(sorted(map(int, lost)), "the grid of its image")
    return VolumeMask(values, is_resampled=True)


def lost_structure_error(structures: Sequence[int], grid: str) -> DataError:
    """Return the error for structures that are so small that no voxel of another grid shows them.

    Args:
        structures: Numbers of the structures.
        grid: The other grid, in words.
    """
    return DataError(
        "lost_structure",
        f"resampling the mask to {grid} would remove the structures {', '.join(map(str, structures))}, which are "
        "smaller than its voxels. Give a finer --spacing or finer images, or leave the case out.",
        structures=list(structures),
    )


def _check_inside(mask: Volume, to_grid: np.ndarray, grid: SpatialGrid) -> None:
    """Raise if a marked voxel of a mask lies outside of its image, or an empty mask has no voxel inside.

    Args:
        mask: Structure numbers and their position.
        to_grid: Affine (4, 4) from voxels of the mask to voxels of the image.
        grid: Grid of the image.
    """
    marked = np.array(np.nonzero(mask.values))
    is_empty = not marked.size
    if is_empty:
        ends = [(0, length - 1) for length in mask.values.shape]
        marked = np.array(np.meshgrid(*ends)).reshape(3, -1)
    places = to_grid[:3, :3] @ marked + to_grid[:3, 3:]
    if is_empty:  # the nearest place to the image in the box around the mask
        places = np.clip(np.zeros(3), places.min(axis=1), places.max(axis=1))[:, np.newaxis]
    refuse_outside(places, grid)


def refuse_outside(places: np.ndarray, grid: SpatialGrid) -> None:
    """Raise if places lie outside of the grid of an image.

    Args:
        places: Places in voxels of the grid, (3, n).
        grid: Grid of the image.

    Raises:
        DataError: If a place lies outside; its fields are the share of such places, and the largest distance.
    """
    last = np.array(grid.shape)[:, np.newaxis] - 1
    places = np.clip(places, -MAX_PLACE, MAX_PLACE)  # squares of larger numbers overflow
    beyond = np.maximum(np.maximum(-0.5 - places, places - last - 0.5), 0) * voxel_edges(grid.affine)[:, np.newaxis]
    share = float((beyond > 0).any(axis=0).mean())
    if share:
        distance = float(np.linalg.norm(beyond, axis=0).max())
        raise DataError(
            "mask_outside_image",
            f"{share:.1%} of the mask lies outside of its image, up to {distance:.1f} mm from its edge, so it belongs "
            "to another image or series. Give the mask of this image.",
            share=share,
            distance_mm=distance,
        )


def _copy(values: np.ndarray, to_grid: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Copy structure numbers to a grid; `to_grid` permutes and flips axes and shifts by whole voxels."""
    source_axes = [int(np.abs(to_grid[axis, :3]).argmax()) for axis in range(3)]
    signs = [to_grid[axis, source] for axis, source in enumerate(source_axes)]
    turned = values.transpose(source_axes)
    turned = np.flip(turned, tuple(axis for axis, sign in enumerate(signs) if sign < 0))
    labels = np.zeros(shape, dtype=np.uint8)
    targets, sources = [], []
    for axis, sign in enumerate(signs):
        length = turned.shape[axis]
        start = int(to_grid[axis, 3]) - (length - 1 if sign < 0 else 0)
        low, high = max(start, 0), min(start + length, shape[axis])
        targets.append(slice(low, max(low, high)))
        sources.append(slice(low - start, max(low, high) - start))
    labels[tuple(targets)] = turned[tuple(sources)]
    return labels


def _resample(mask: Volume, grid: SpatialGrid) -> np.ndarray:
    """Return the structure number of the nearest voxel of a mask for each voxel of a grid, slab by slab."""
    labels = np.zeros(grid.shape, dtype=np.uint8)
    for number in range(grid.shape[0]):
        affine = grid.affine.copy()
        affine[:3, 3] += number * grid.affine[:3, 0]
        labels[number] = resample_labels(mask, SpatialGrid((1, *grid.shape[1:]), affine))[0]
    return labels
