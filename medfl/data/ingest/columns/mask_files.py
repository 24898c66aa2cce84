"""Mask files of a user's own images: find them by column or by suffix, and read image and mask as one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.ingest.folder_format import RowFormat, read_row
from medfl.data.ingest.masks import masked_row
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.images import IMAGE_SUFFIXES, file_kind, image_size, read_voxels
from medfl.data.readers.segmentations import one_structure, read_mask
from medfl.errors import DataError

MAX_SHIFT_MM = 0.01
"""Largest difference between the positions of an image and its mask, in millimetres for each entry of the affines."""

DEFAULT_STRUCTURE = "foreground"
"""Name of the structure in masks if the user names none. All segments or regions of a DICOM mask belong to it."""


@dataclass(frozen=True)
class ImageAndMask:
    """A 2-D image file and its mask file. `medfl.data.ingest.volumes.VolumeFiles` is that of volumes.

    Attributes:
        image: Path of the image.
        mask: Path of the mask.
    """

    image: Path
    mask: Path

    def files(self) -> Sequence[Path]:
        """Return both paths."""
        return [self.image, self.mask]


def mask_name(image: str, suffix: str) -> str:
    """Return the table's name of an image with a suffix in place of its file extension.

    ``a/b.nii.gz`` gives ``a/b_mask``; the folder or UID ``a/b`` of a DICOM series gives ``a/b_mask``, too.

    Args:
        image: Path or UID of the image, as in the table.
        suffix: Text between the image's name and the mask's extension, such as ``_mask``.
    """
    name = image.rstrip("/\\")
    ending = next((end for end in IMAGE_SUFFIXES if name.lower().endswith(end)), "")
    return name[: len(name) - len(ending)] + suffix


def read_image_and_mask(item: ImageAndMask, form: RowFormat, structures: int) -> LoadedItem:
    """Read a 2-D image and its mask as one row with the mask as last channel.

    The mask is resized to the size of the row: the share of a pixel that is inside decides for one structure, and the
    nearest pixel for several.

    Args:
        item: Files of image and mask.
        form: Format of the image's row.
        structures: Number of structures without the background. If it is 1, one value other than 0 is allowed, such as
            255; otherwise the values are the numbers of the structures.

    Raises:
        DataError: If a file can't be read, or the mask has another grid than the image, other values or several
            colours, or is a DICOM segmentation although there are several structures.
    """
    pixels = read_row(item.image, form).pixels
    mask = _read_plane_mask(item)
    if structures > 1 and file_kind(item.mask) == "dicom":
        raise DataError(
            "unsupported_mask",
            "a DICOM segmentation of a 2-D image is read as one structure. Leave out --structures, or export a mask "
            "with a value for each structure, such as PNG.",
            what="mask",
        )
    resized = _resize_share(one_structure(mask), form.size) if structures == 1 else _resize_nearest(mask, form.size)
    return masked_row(pixels.reshape(*form.size, -1), resized, structures + 1)


def _read_plane_mask(item: ImageAndMask) -> np.ndarray:
    """Return the values of the mask of a 2-D image, (H, W), oriented like images."""
    is_volume_file = file_kind(item.mask) == "volume"
    if not is_volume_file:
        mask = _one_channel(read_mask(item.mask))
    else:
        voxels = read_voxels(item.mask)
        is_slice = np.count_nonzero(np.array(voxels.values.shape) > 1) == 2
        mask = voxels.values.squeeze() if is_slice else voxels.values
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
    if is_volume_file and file_kind(item.image) == "volume":
        position = read_voxels(item.image).affine
        if not np.allclose(position, voxels.affine, atol=MAX_SHIFT_MM):
            raise DataError(
                "misaligned_mask",
                "the mask's header states another position, spacing or orientation than its image's. Export the mask "
                "on the grid of its image.",
                what="mask",
            )
    return mask


def _one_channel(values: np.ndarray) -> np.ndarray:
    """Return the mask (H, W) of a mask (H, W) or (H, W, colours).

    Raises:
        DataError: If the mask has several colours, which have no order.
    """
    if values.ndim == 2:
        return values
    colours = np.unique(values[values.any(axis=-1)], axis=0)
    if len(colours) > 1 and (colours != colours[:, :1]).any():
        raise DataError(
            "ambiguous_mask",
            f"the mask holds {len(colours)} colours beside black, expected one colour or grey values. Save it in grey, "
            "with the number of the structure in each pixel.",
            what="mask",
            count=len(colours),
        )
    return values.max(axis=-1)


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
