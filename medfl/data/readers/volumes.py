"""Read NIfTI volumes with their affines, and resample them to one common grid in millimetres.

Contradictions within a file are refused. Messages never name a file, because its name may identify a patient; the
caller knows which file it was.

The common grid is a cube of MNI152 space that contains the brain: 192 mm a side, centred at (0, -18, 8) mm, so that 48
voxels a side have 4 mm each. Its voxels are cubes, so that a rotation of the array is a rotation of the head. It is
symmetric in the left-right direction, so that a mirrored array is a mirrored head. Its axes run from left to right,
back to front and feet to head, as in `medfl.data.readers.images`.

- Maps (`resample_map`) are interpolated trilinearly, with 0 outside of the map. If the grid is coarser than the map,
  the map is sampled on a finer grid whose voxels are then averaged, so that no voxel is skipped.
- Labels (`resample_labels`) are taken from the nearest voxel.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medfl.errors import DataError, SettingsError
from medfl.utils.formats import size as bytes_text
from medfl.utils.memory import available_memory

SUFFIXES = (".nii", ".nii.gz")
"""File name suffixes of NIfTI files, in lower case."""


MAX_VOXELS = 1 << 26
"""Maximum number of voxels, checked before memory is allocated; a head at 0.5 mm has about 58 million."""


MAX_GZIP_RATIO = 1100
"""Upper bound of the compression ratio of a gzip file; deflate reaches 1032."""


BYTES_PER_VOXEL = 12
"""Memory that reading takes for each voxel: the stored value, and twice a value in float32."""


_MIN_DETERMINANT = 1e-6
"""Minimum determinant of the normalised axes of an affine; below it they are coplanar."""


@dataclass(frozen=True)
class Volume:
    """Volume and its position in space.

    Attributes:
        values: Voxels (X, Y, Z), in file order; floating point.
        affine: Affine (4, 4) from voxel indices to millimetres, in RAS convention.
    """

    values: np.ndarray
    affine: np.ndarray


def read_volume(path: Path) -> Volume:
    """Read a NIfTI file with one volume.

    Args:
        path: A ``.nii`` or ``.nii.gz`` file.

    Returns:
        Volume with values scaled as the header states, float32 (float64 if they are stored so).

    Raises:
        DataError: If the file is no NIfTI file, contains several volumes or no real numbers, is damaged or truncated,
            claims an impossible size, or has no affine.
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
    _check_size(shape, stored.itemsize, path)
    affine = _affine(image)
    with _decoding():
        values = np.asarray(image.dataobj, dtype=np.float64 if stored == np.float64 else np.float32)
    return Volume(values.reshape(shape[:3]), affine)


def voxel_edges(affine: np.ndarray) -> np.ndarray:
    """Return the edge lengths of a voxel in mm, shape (3,), from an affine (4, 4)."""
    edges: np.ndarray = np.linalg.norm(affine[:3, :3], axis=0)
    return edges


def canonical_volume(image: Any) -> Volume:
    """Return a nibabel image as a volume, float32, rotated to the nearest canonical orientation."""
    import nibabel

    turned = nibabel.as_closest_canonical(image)
    values = np.asarray(turned.dataobj, dtype=np.float32)
    return Volume(values.reshape(values.shape[:3]), np.asarray(turned.affine, dtype=np.float64))


def resized_spacing(grid: SpatialGrid, size: Sequence[int]) -> tuple[float, float, float]:
    """Return the voxel spacing (D, H, W), in millimetres, of a volume after it was resized.

    Args:
        grid: Grid of the volume before resizing.
        size: Size after resizing, (D, H, W).
    """
    edges = voxel_edges(grid.affine) * np.array(grid.shape) / np.array(size)
    return float(edges[0]), float(edges[1]), float(edges[2])


def resampled_shape(shape: Sequence[int], affine: np.ndarray, spacing: Sequence[float]) -> tuple[int, int, int]:
    """Return the smallest number of voxels along each axis that covers a volume after resampling.

    Args:
        shape: Number of voxels along each axis before resampling, (3,).
        affine: Affine of the volume, (4, 4).
        spacing: New voxel spacing along each axis in millimetres, (3,).
    """
    edges = voxel_edges(affine)
    x, y, z = (math.ceil(shape[axis] * edges[axis] / spacing[axis] - 0.01) for axis in range(3))
    return x, y, z


def resample_to_spacing(volume: Volume, spacing: Sequence[float]) -> Volume:
    """Resample a volume trilinearly to a voxel spacing, with MONAI, as `medfl.data.transforms.frame.Frame` does.

    Args:
        volume: Volume.
        spacing: New voxel spacing along each axis in millimetres, (3,).

    Raises:
        DataError: If the memory does not suffice.
    """
    import torch  # torch and MONAI take seconds to import
    from monai.data import MetaTensor
    from monai.transforms import Spacing

    check_memory(math.prod(resampled_shape(volume.values.shape, volume.affine, spacing)))
    image = MetaTensor(torch.from_numpy(np.array(volume.values[np.newaxis])), affine=torch.from_numpy(volume.affine))
    resampled: Any = Spacing(pixdim=tuple(spacing), mode="bilinear")(image)
    return Volume(resampled[0].numpy(), resampled.affine.numpy())


def pad_or_crop(voxels: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Return a volume (D, H, W) padded with zeros or cropped, symmetrically, to a size, with MONAI."""
    from monai.transforms import ResizeWithPadOrCrop  # MONAI takes seconds to import

    transform: Any = ResizeWithPadOrCrop(tuple(size))
    fitted: np.ndarray = np.asarray(transform(voxels[np.newaxis]))[0]
    return fitted


def check_memory(voxels: int) -> None:
    """Raise if a volume needs more memory than is left: a small compressed file can be a large volume.

    Args:
        voxels: Number of voxels.

    Raises:
        DataError: If the memory does not suffice.
    """
    needed, free = voxels * BYTES_PER_VOXEL, available_memory()
    if free is not None and needed > free:
        raise DataError(
            "out_of_memory",
            f"reading the volume needs about {bytes_text(needed)} of memory, {bytes_text(free)} are left. Crop or "
            "downsample it, or read it on another machine.",
            needed=needed,
            free=free,
        )


@contextlib.contextmanager
def _decoding() -> Iterator[None]:
    """Convert every exception of the block into a DataError for a damaged file.

    Only the type of the exception is kept, because its message may name the file.
    """
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


def _check_size(shape: tuple[int, ...], itemsize: int, path: Path) -> None:
    """Raise if the header states an impossible size, before memory is allocated for it."""
    voxels = math.prod(shape)
    claim = f"the header of the NIfTI file claims {'x'.join(map(str, shape[:3]))} voxels"
    if min(shape) < 1 or voxels > MAX_VOXELS:
        raise DataError(
            "invalid_image_size",
            f"{claim}, expected 1 to {MAX_VOXELS / 1e6:.0f} million in all. Download or export it again.",
            maximum=MAX_VOXELS,
            found=shape[:3],
        )
    max_bytes = path.stat().st_size * (MAX_GZIP_RATIO if path.name.lower().endswith(".gz") else 1)
    if voxels * itemsize > max_bytes:
        raise DataError(
            "damaged_file",
            f"{claim}, the file is too short to contain them. Download or export it again.",
            claimed=shape[:3],
        )


def _affine(image: Any) -> np.ndarray:
    with _decoding():
        known = int(image.header["qform_code"]) or int(image.header["sform_code"])
        affine = np.array(image.affine, dtype=np.float64)
    if not known:
        raise DataError(
            "missing_affine",
            "the NIfTI file does not state its position in space (qform_code and sform_code are 0). Set its affine.",
        )
    if not np.isfinite(affine).all() or is_flat(affine):
        raise DataError(
            "degenerate_affine", "the affine of the NIfTI file is degenerate: its axes do not span a space. Correct it."
        )
    return affine


def is_flat(affine: np.ndarray) -> bool:
    """Return True if the three voxel axes are coplanar, or one of them has length 0."""
    edges = voxel_edges(affine)
    return bool(edges.min() <= 0 or abs(np.linalg.det(affine[:3, :3] / edges)) < _MIN_DETERMINANT)


SPAN_MM = 192.0
"""Side, in millimetres, of the cube that the common grid covers."""


CENTRE_MM = (0.0, -18.0, 8.0)
"""Centre, in millimetres, of the cube that the common grid covers, in MNI152 space (RAS)."""


SIZE_RANGE = (4, 256)
"""Smallest and largest number of voxels along a side of the common grid."""


MAX_SAMPLES_PER_EDGE = 4
"""Maximum number of samples of a map that are averaged along each edge of a voxel of the grid."""


@dataclass(frozen=True)
class SpatialGrid:
    """Grid of an array in space.

    Attributes:
        shape: Number of voxels along each axis, (X, Y, Z).
        affine: Affine (4, 4) from voxel indices to millimetres, in RAS convention.
    """

    shape: tuple[int, int, int]
    affine: np.ndarray


def common_grid(size: int) -> SpatialGrid:
    """Return the cube of MNI152 space to which all maps of a data set are resampled.

    Args:
        size: Number of voxels a side, 4 to 256.

    Raises:
        SettingsError: If `size` is out of its range.
    """
    if not SIZE_RANGE[0] <= size <= SIZE_RANGE[1]:
        raise SettingsError(
            "setting_out_of_range",
            f"expected a size of {SIZE_RANGE[0]} to {SIZE_RANGE[1]} voxels a side, got {size}",
            setting="size",
            minimum=SIZE_RANGE[0],
            maximum=SIZE_RANGE[1],
            found=size,
        )
    edge = SPAN_MM / size
    affine = np.diag([edge, edge, edge, 1.0])
    affine[:3, 3] = np.array(CENTRE_MM) - SPAN_MM / 2 + edge / 2
    return SpatialGrid((size, size, size), affine)


def resample_map(volume: Volume, grid: SpatialGrid) -> np.ndarray:
    """Resample a map to a grid by trilinear interpolation; see the module.

    Args:
        volume: Map; values outside of it are 0.
        grid: Target grid.

    Returns:
        Array of the grid's shape, float32.
    """
    parts = _samples_per_edge(volume, grid)
    to_source = np.linalg.inv(volume.affine) @ _finer_affine(grid.affine, parts)
    steps = np.diag(to_source)[:3]
    parallel = np.allclose(to_source[:3, :3], np.diag(steps), atol=1e-9)
    return (_resample_along_axes if parallel else _resample_general)(volume.values, to_source, grid.shape, parts)


def resample_labels(volume: Volume, grid: SpatialGrid) -> np.ndarray:
    """Resample labels to a grid by the nearest voxel; 0 outside of the volume.

    Args:
        volume: Labels, integers.
        grid: Target grid.

    Returns:
        Array of the grid's shape, int32.
    """
    labels = np.zeros(grid.shape, np.int32)
    places = np.indices(grid.shape).reshape(3, -1)
    nearest = np.floor(_apply_affine(np.linalg.inv(volume.affine) @ grid.affine, places) + 0.5).astype(np.int64)
    inside = ((nearest >= 0) & (nearest < np.array(volume.values.shape)[:, None])).all(axis=0)
    labels.reshape(-1)[inside] = volume.values[tuple(nearest[:, inside])]
    return labels


def share_inside(mask: np.ndarray, affine: np.ndarray, grid: SpatialGrid) -> float:
    """Return the share of a volume's marked voxels that lie inside a grid, in [0, 1].

    Args:
        mask: Marked voxels (X, Y, Z), bool; at least one voxel is marked.
        affine: Affine of the volume.
        grid: Grid to test.
    """
    places = _apply_affine(np.linalg.inv(grid.affine) @ affine, np.array(np.nonzero(mask)))
    ends = np.array(grid.shape)[:, None] - 0.5
    return float(((places >= -0.5) & (places <= ends)).all(axis=0).mean())


def _resample_along_axes(values: np.ndarray, to_source: np.ndarray, shape: tuple[int, ...], parts: int) -> np.ndarray:
    """Resample one axis at a time, for parallel axes of volume and grid; many times faster than `_resample_general`."""
    for length, step, start in zip(shape, np.diag(to_source), to_source[:3, 3], strict=False):
        places = start + step * np.arange(length * parts)
        near = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(values.shape[0])))
        weights = near.reshape(length, parts, -1).mean(axis=1, dtype=np.float64).astype(np.float32)
        values = np.tensordot(values, weights, axes=(0, 1))  # the next axis comes first, the new one last
    return np.ascontiguousarray(values, dtype=np.float32)


def _resample_general(values: np.ndarray, to_source: np.ndarray, shape: tuple[int, ...], parts: int) -> np.ndarray:
    """Resample for any affine."""
    from scipy import ndimage

    fine = tuple(length * parts for length in shape)
    options = {"order": 1, "mode": "grid-constant", "output": np.float32}
    sampled = ndimage.affine_transform(values, to_source[:3, :3], to_source[:3, 3], output_shape=fine, **options)
    x, y, z = shape
    mean: np.ndarray = sampled.reshape(x, parts, y, parts, z, parts).mean(axis=(1, 3, 5))
    return mean


def _apply_affine(matrix: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Apply an affine (4, 4) to points (3, n)."""
    moved: np.ndarray = matrix[:3, :3] @ places + matrix[:3, 3:]
    return moved


def _samples_per_edge(volume: Volume, grid: SpatialGrid) -> int:
    """Return the samples along each edge of the grid's voxels that skip no voxel of the volume, within the maximum."""
    ratio = voxel_edges(grid.affine).max() / voxel_edges(volume.affine).min()
    return int(np.clip(np.ceil(ratio - 1e-6), 1, MAX_SAMPLES_PER_EDGE))


def _finer_affine(affine: np.ndarray, parts: int) -> np.ndarray:
    """Return the affine of a grid whose voxels are divided into `parts` along each edge."""
    inner = np.diag([1 / parts, 1 / parts, 1 / parts, 1.0])
    inner[:3, 3] = (1 / parts - 1) / 2
    fine: np.ndarray = affine @ inner
    return fine
