"""NIfTI volumes read together with their place in space, and one grid for all of a data set, reached by affines in mm.

Nothing is believed that a file itself contradicts. Messages never name a file, because its name may be a patient's: the
caller knows which one it was.

The common grid is a cube of MNI152 space that holds the brain: 192 mm a side, centred at (0, -18, 8) mm, so that 48
voxels a side have 4 mm each. Its voxels are cubes, so that a rotation of the array is a rotation of the head, and it is
as wide to the left as to the right, so that a mirrored array is a mirrored head. Its axes run from left to right, back
to front and feet to head, as those of `medfl.data.readers.images`.

- Maps (`onto`) are interpolated trilinearly; outside a map there is 0. Where the grid is coarser than the map, it is
  sampled on a finer grid, whose voxels are then averaged, so that no voxel is skipped.
- Labels (`labels_onto`) are those of the nearest voxel.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medfl.errors import DataError, SettingsError

SUFFIXES = (".nii", ".nii.gz")
"""Ends of the names of NIfTI files, in small letters."""


MOST_VOXELS = 1 << 26
"""A volume that claims more is refused before memory is taken for it; a head at 0.5 mm has about 58 million."""


MOST_PACKED = 1100
"""Bytes that one byte of a gzip file can stand for: deflate reaches 1032."""


_FLAT = 1e-6


@dataclass(frozen=True)
class Volume:
    """A volume and where it lies.

    Attributes:
        values: Shape (X, Y, Z), in the order of the file; floating.
        affine: Shape (4, 4), from places in `values` to mm: to the right, to the front, up.
    """

    values: np.ndarray
    affine: np.ndarray


def read_volume(path: Path) -> Volume:
    """Read a NIfTI file of one volume.

    Args:
        path: A ``.nii`` or ``.nii.gz`` file.

    Returns:
        Its values, scaled as its head says, in float32 (float64 if they are stored so), and its affine.

    Raises:
        DataError: If it is no such file, holds several volumes or no real numbers, is damaged or cut short, claims an
            absurd size, or does not say where it lies.
    """
    if not path.name.lower().endswith(SUFFIXES):
        raise DataError(
            "unsupported_file",
            f"expected a NIfTI file ({' or '.join(SUFFIXES)}), got another ending. Convert the file.",
            expected=SUFFIXES,
        )
    if not path.is_file():
        raise DataError("missing_file", "expected a NIfTI file, there is none. Check the path.")
    with _decoding():
        import nibabel

        image: Any = nibabel.load(path)
        shape, stored = tuple(map(int, image.shape)), image.get_data_dtype()
    _check_kind(shape, stored)
    _check_claims(shape, stored.itemsize, path)
    affine = _affine(image)
    with _decoding():
        values = np.asarray(image.dataobj, dtype=np.float64 if stored == np.float64 else np.float32)
    return Volume(values.reshape(shape[:3]), affine)


def voxel_edges(affine: np.ndarray) -> np.ndarray:
    """The edges of a voxel in mm, shape (3,), of an affine of shape (4, 4)."""
    edges: np.ndarray = np.linalg.norm(affine[:3, :3], axis=0)
    return edges


@contextlib.contextmanager
def _decoding() -> Iterator[None]:
    """Whatever a decoder raises means a damaged file; its own message may name the file, so only its type is kept."""
    try:
        yield
    except Exception as error:
        raise DataError(
            "damaged_file",
            f"the NIfTI file is damaged or cut short ({type(error).__name__}). Download or export it again.",
            cause=type(error).__name__,
        ) from None


def _check_kind(shape: tuple[int, ...], stored: np.dtype) -> None:
    if stored.fields is not None or stored.kind not in "iuf":
        raise DataError(
            "unsupported_pixel_format",
            "expected a NIfTI volume of real numbers, got colours or complex numbers. Convert it.",
        )
    if len(shape) < 3 or any(length != 1 for length in shape[3:]):
        raise DataError(
            "wrong_shape",
            f"expected one NIfTI volume of three axes, got the shape {'x'.join(map(str, shape))}. Save the volume to "
            "use in its own file.",
            found=shape,
        )


def _check_claims(shape: tuple[int, ...], itemsize: int, path: Path) -> None:
    """Refuse a size that can't be true before any memory is taken for it."""
    voxels = math.prod(shape)
    claim = f"the head of the NIfTI file claims {'x'.join(map(str, shape[:3]))} voxels"
    if min(shape) < 1 or voxels > MOST_VOXELS:
        raise DataError(
            "invalid_image_size",
            f"{claim}, expected 1 to {MOST_VOXELS / 1e6:.0f} million in all. Download or export it again.",
            maximum=MOST_VOXELS,
            found=shape[:3],
        )
    held = path.stat().st_size * (MOST_PACKED if path.name.lower().endswith(".gz") else 1)
    if voxels * itemsize > held:
        raise DataError(
            "damaged_file",
            f"{claim}, the file is too short to hold them. Download or export it again.",
            claimed=shape[:3],
        )


def _affine(image: Any) -> np.ndarray:
    with _decoding():
        known = int(image.header["qform_code"]) or int(image.header["sform_code"])
        affine = np.array(image.affine, dtype=np.float64)
    if not known:
        raise DataError(
            "missing_affine",
            "the NIfTI file does not say where it lies in space (qform_code and sform_code are 0). Set its affine.",
        )
    if not np.isfinite(affine).all() or _is_flat(affine):
        raise DataError(
            "degenerate_affine", "the affine of the NIfTI file is degenerate: its axes do not span a space. Correct it."
        )
    return affine


def _is_flat(affine: np.ndarray) -> bool:
    """Whether the three axes of the voxels lie in a plane, or one of them has no length."""
    edges = voxel_edges(affine)
    return bool(edges.min() <= 0 or abs(np.linalg.det(affine[:3, :3] / edges)) < _FLAT)


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
        raise SettingsError(
            "setting_out_of_range",
            f"expected a size of {SIZES[0]} to {SIZES[1]} voxels a side, got {size}",
            setting="size",
            minimum=SIZES[0],
            maximum=SIZES[1],
            found=size,
        )
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
