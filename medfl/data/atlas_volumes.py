"""Read a NIfTI volume together with its place in space; nothing is believed that the file itself contradicts.

Messages never name a file, because its name may be a patient's: the caller knows which one it was.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medfl.errors import DataError

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
        raise DataError(f"expected a NIfTI file ({' or '.join(SUFFIXES)}), got another ending. Convert the file.")
    if not path.is_file():
        raise DataError("expected a NIfTI file, there is none. Check the path.")
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
            f"the NIfTI file is damaged or cut short ({type(error).__name__}). Download or export it again."
        ) from None


def _check_kind(shape: tuple[int, ...], stored: np.dtype) -> None:
    if stored.fields is not None or stored.kind not in "iuf":
        raise DataError("expected a NIfTI volume of real numbers, got colours or complex numbers. Convert it.")
    if len(shape) < 3 or any(length != 1 for length in shape[3:]):
        raise DataError(
            f"expected one NIfTI volume of three axes, got the shape {'x'.join(map(str, shape))}. Save the volume to "
            "use in its own file."
        )


def _check_claims(shape: tuple[int, ...], itemsize: int, path: Path) -> None:
    """Refuse a size that can't be true before any memory is taken for it."""
    voxels = math.prod(shape)
    claim = f"the head of the NIfTI file claims {'x'.join(map(str, shape[:3]))} voxels"
    if min(shape) < 1 or voxels > MOST_VOXELS:
        raise DataError(f"{claim}, expected 1 to {MOST_VOXELS / 1e6:.0f} million in all. Download or export it again.")
    held = path.stat().st_size * (MOST_PACKED if path.name.lower().endswith(".gz") else 1)
    if voxels * itemsize > held:
        raise DataError(f"{claim}, the file is too short to hold them. Download or export it again.")


def _affine(image: Any) -> np.ndarray:
    with _decoding():
        known = int(image.header["qform_code"]) or int(image.header["sform_code"])
        affine = np.array(image.affine, dtype=np.float64)
    if not known:
        raise DataError(
            "the NIfTI file does not say where it lies in space (qform_code and sform_code are 0). Set its affine."
        )
    if not np.isfinite(affine).all() or _is_flat(affine):
        raise DataError("the affine of the NIfTI file is degenerate: its axes do not span a space. Correct it.")
    return affine


def _is_flat(affine: np.ndarray) -> bool:
    """Whether the three axes of the voxels lie in a plane, or one of them has no length."""
    edges = voxel_edges(affine)
    return bool(edges.min() <= 0 or abs(np.linalg.det(affine[:3, :3] / edges)) < _FLAT)
