"""Mask files of a user's own images: find them by column or by suffix, and read image and mask as one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.ingest.folder_format import RowFormat, read_row
from medfl.data.ingest.masks import masked_row
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.dicom_header import decoding
from medfl.data.readers.dicom_series import ImageSource, SeriesFiles
from medfl.data.readers.images import IMAGE_SUFFIXES, file_kind, image_size
from medfl.data.readers.itk_files import ITK_SUFFIXES, open_itk
from medfl.data.readers.segmentations import read_mask
from medfl.errors import DataError

MAX_MASK_VOXELS = 512 * 512 * 2048
"""Maximum number of voxels of a mask."""

MAX_SHIFT_MM = 0.01
"""Largest difference between the positions of an image and its mask, in millimetres for each entry of the affines."""

DEFAULT_STRUCTURE = "foreground"
"""Name of the structure in masks if the user names none."""


@dataclass(frozen=True)
class ImageAndMask:
    """An image file and its mask file.

    Attributes:
        image: Path of the image.
        mask: Path of the mask.
    """

    image: Path
    mask: Path

    def files(self) -> Sequence[Path]:
        """Return both paths."""
        return [self.image, self.mask]


def image_path(source: ImageSource | DataError) -> Path:
    """Return the path of an image's file, or of the folder of the slices of its DICOM series."""
    assert not isinstance(source, DataError)
    return source.paths[0].parent if isinstance(source, SeriesFiles) else source


def mask_name(image: Path, suffix: str) -> str:
    """Return the path of the mask that belongs to an image, without file extension: ``a/b.nii.gz`` gives ``a/b_mask``.

    Args:
        image: Path of the image.
        suffix: Text between the image's name and its extension, such as ``_mask``.
    """
    ending = next((end for end in IMAGE_SUFFIXES if image.name.lower().endswith(end)), "")
    return str(image.with_name(image.name[: len(image.name) - len(ending)] + suffix))


def read_image_and_mask(item: ImageAndMask, form: RowFormat, structures: int) -> LoadedItem:
    """Read an image and its mask as one row with the mask as last channel.

    The mask is resized to the size of the row: the share of a pixel that is inside decides for one structure in a 2-D
    mask, and the nearest pixel otherwise.

    Args:
        item: Files of image and mask.
        form: Format of the image's row.
        structures: Number of structures without the background. If it is 1, one value other than 0 is allowed, such as
            255; otherwise the values are the numbers of the structures.

    Raises:
        DataError: If a file can't be read, or the mask has another size than the image, or other values.
    """
    pixels = read_row(item.image, form).pixels
    mask = _read_values(item.mask)
    original = image_size(item.image)
    if mask.shape != original:
        raise DataError(
            "wrong_shape",
            f"the mask is {_size_text(mask.shape)}, its image {_size_text(original)}. Export the mask on the grid of "
            "its image.",
            what="mask",
            expected=original,
            found=mask.shape,
        )
    _check_position(item)
    if structures == 1:
        mask = _one_structure(mask)
    smooth = structures == 1 and mask.ndim == 2
    resized = _resize_share(mask, form.size) if smooth else _resize_nearest(mask, form.size)
    return masked_row(pixels.reshape(*form.size, -1), resized, structures + 1)


def _check_position(item: ImageAndMask) -> None:
    """Raise if image and mask are volumes at different positions in space."""
    if file_kind(item.image) != "volume" or file_kind(item.mask) != "volume":
        return
    with decoding():
        position, mask_position = _open_volume(item.image).affine, _open_volume(item.mask).affine
    if not np.allclose(position, mask_position, atol=MAX_SHIFT_MM):
        raise DataError(
            "different_grid",
            "the mask's header states another position, spacing or orientation than its image's. Export the mask on "
            "the grid of its image.",
            what="mask",
        )


def _open_volume(path: Path) -> Any:
    """Return the volume of a NIfTI, NRRD or MHA file, without its voxels."""
    import nibabel

    return open_itk(path, MAX_MASK_VOXELS) if path.name.lower().endswith(ITK_SUFFIXES) else nibabel.load(path)


def _one_structure(mask: np.ndarray) -> np.ndarray:
    values = np.unique(mask[mask != 0])
    if len(values) > 1:
        raise DataError(
            "ambiguous_mask",
            f"the mask holds {len(values)} values beside 0, expected one. Name the structures in the order of their "
            "values with --structures, or save the mask without smooth edges, not as JPEG.",
            count=len(values),
        )
    return (mask != 0).astype(np.uint8)


def _read_values(path: Path) -> np.ndarray:
    """Return the values of a mask file, (H, W) or (D, H, W), oriented like images."""
    if file_kind(path) != "volume":
        values = read_mask(path)
        return values if values.ndim == 2 else values.max(axis=-1)
    import nibabel

    with decoding():
        volume = _open_volume(path)
    shape = tuple(map(int, volume.shape))
    if int(np.prod(shape)) > MAX_MASK_VOXELS or len(shape) < 3 or any(length != 1 for length in shape[3:]):
        raise DataError(
            "wrong_shape",
            f"expected a mask of three axes and at most {MAX_MASK_VOXELS // 10**6} million voxels, got "
            f"{_size_text(shape)}. Export the mask on the grid of its image.",
            what="mask",
            found=shape,
        )
    with decoding():
        mask = np.asarray(nibabel.as_closest_canonical(volume).dataobj)
    mask = mask.reshape(mask.shape[:3])
    is_slice = np.count_nonzero(np.array(mask.shape) > 1) == 2
    return mask.squeeze() if is_slice else mask


def _resize_share(mask: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resize a binary 2-D mask: a pixel is inside if at least half of its area is."""
    from PIL import Image

    if mask.shape == tuple(size):
        return mask
    share = Image.fromarray(mask * np.uint8(255)).resize((size[1], size[0]), Image.Resampling.BOX)
    return (np.asarray(share) >= 128).astype(np.uint8)


def _resize_nearest(mask: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resize a mask by taking, for each new pixel, the old pixel at its centre."""
    places = [((np.arange(new) + 0.5) * old / new).astype(np.int64) for old, new in zip(mask.shape, size, strict=True)]
    return mask[np.ix_(*places)]


def _size_text(size: Sequence[int]) -> str:
    return "x".join(map(str, size))
