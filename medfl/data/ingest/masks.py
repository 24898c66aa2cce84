"""Read images together with their masks, and store the masks in a separate array.

During ingestion, which reads image files into one array, a row contains the image and, as last channel, its mask. Both
are therefore read, recorded and left out together. `separate_masks` splits the finished array.

A structure is a segmented object; its number is the value of its pixels in the mask, and 0 is the background.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.datalists import Datalist
from medfl.data.ingest.array_file import new_array
from medfl.data.ingest.checkpoint import ARRAY_FILE
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.rgb import resize
from medfl.data.targets import MASK_STRUCTURES_KEY, STRUCTURES_KEY
from medfl.errors import DataError

MASK_FILE = "masks.npy"
"""File name of the mask array in the folder of a pooled data set."""

CHUNK_BYTES = 16 << 20
"""Size, in bytes, of the chunks in which `separate_masks` copies the array."""


def masked_row(pixels: np.ndarray, mask: np.ndarray, structures: int) -> LoadedItem:
    """Return a row with an image and its mask as last channel.

    Args:
        pixels: Image with C channels, shape (*spatial, C).
        mask: Structure number of each pixel, (*spatial), integers from 0 to `structures` - 1.
        structures: Number of structures, including the background.

    Returns:
        Row of shape (*spatial, C + 1) and of the type of `pixels`, with the numbers of the structures that occur.

    Raises:
        DataError: If the mask has another size than its image, or contains an invalid structure number.
    """
    if mask.shape != pixels.shape[:-1]:
        raise DataError(
            "wrong_shape",
            f"the mask is {_size_text(mask.shape)}, its image {_size_text(pixels.shape[:-1])}. Export it again.",
            what="mask",
            expected=pixels.shape[:-1],
            found=mask.shape,
        )
    values = np.unique(mask)
    known = (values >= 0) & (values < structures) & (values == np.floor(values))
    if not known.all():
        raise DataError(
            "wrong_label",
            f"the mask holds {values[~known][0]:g}, expected whole numbers from 0 to {structures - 1}. Correct the "
            "mask, or the list of labels.",
            found=float(values[~known][0]),
            maximum=structures - 1,
        )
    row = np.concatenate([pixels, mask[..., np.newaxis].astype(pixels.dtype)], axis=-1)
    return LoadedItem(row, {MASK_STRUCTURES_KEY: [int(value) for value in values if value > 0]})


def masked_image_row(image: np.ndarray, mask: np.ndarray, size: tuple[int, int]) -> LoadedItem:
    """Return a resized row with a 2-D image and its binary lesion mask as last channel.

    A pixel of the resized mask is lesion if at least half of the area it covers is lesion.

    Args:
        image: Image, (H, W) or (H, W, 3), uint8.
        mask: Lesion mask, (H, W) or (H, W, colours): 0 outside of lesions, one other value inside, such as 1 or 255.
        size: Height and width of the result.

    Returns:
        Row of shape (*size, C + 1), uint8, with the numbers of the structures that occur: [1] or none.

    Raises:
        DataError: If the mask has another size than its image, or contains more than two values.
    """
    flat = mask if mask.ndim == 2 else mask.max(axis=-1)
    if flat.shape != image.shape[:2]:
        raise DataError(
            "wrong_shape",
            f"the mask is {_size_text(flat.shape)}, its image {_size_text(image.shape[:2])}. Export it again.",
            what="mask",
            expected=image.shape[:2],
            found=flat.shape,
        )
    values = np.unique(flat[flat > 0])
    if len(values) > 1:
        raise DataError(
            "ambiguous_mask",
            f"the mask holds {len(values)} values beside 0, expected one, for the lesion. Save it as PNG, not as "
            "JPEG, and without smooth edges.",
            count=len(values),
        )
    pixels = resize(image, size)
    share = resize((flat > 0).astype(np.uint8) * 255, size)
    return masked_row(pixels.reshape(*size, -1), (share >= 128).astype(np.uint8), 2)


def separate_masks(folder: Path) -> None:
    """Split the array of rows with masks in a folder into an image array and a mask array (`MASK_FILE`), in place.

    Images of one channel lose the channel axis; masks become uint8. Neither array is held in memory.

    Args:
        folder: Folder with the array; the mask array is written next to it.

    Raises:
        DataError: If the disk is full.
    """
    both = np.load(folder / ARRAY_FILE, mmap_mode="r", allow_pickle=False)
    shape = both.shape[:-1] if both.shape[-1] == 2 else (*both.shape[:-1], both.shape[-1] - 1)
    step = max(1, CHUNK_BYTES // max(1, both[:1].nbytes))
    images_only = folder / "alone.npy"
    with (
        new_array(images_only, shape, both.dtype) as images,
        new_array(folder / MASK_FILE, both.shape[:-1], np.uint8) as masks,
    ):
        for start in range(0, len(both), step):
            some = np.asarray(both[start : start + step])
            images.write(start, some[..., :-1].reshape(len(some), *shape[1:]))
            masks.write(start, some[..., -1])
        images.flush()
        masks.flush()
    os.replace(images_only, folder / ARRAY_FILE)


def add_masks(datalist: Datalist, structures: Sequence[str], spacing: Sequence[float] | None = None) -> Datalist:
    """Return the data list with the objective and the entries that describe the masks in `MASK_FILE`.

    Args:
        datalist: Data list whose records have `medfl.data.targets.MASK_STRUCTURES_KEY`.
        structures: Names of the structures, by their numbers; the background is first.
        spacing: Voxel spacing in millimetres; None if unknown.
    """
    objective: dict[str, Any] = {"name": "segmentation", "channels": len(structures)}
    if spacing is not None:
        objective["spacing"] = list(map(float, spacing))
    return replace(
        datalist, objective=objective, mask_array=MASK_FILE, extra={STRUCTURES_KEY: list(structures)} | datalist.extra
    )


MASK_STRATA = ("nothing in the mask", "something in the mask")
"""Names of the two groups in which cases with masks are counted: empty masks, and masks with a structure."""


def empty_mask_notes(datalist: Datalist) -> list[str]:
    """Return a note about empty masks for the user, or an empty list. Images with empty masks stay in the data set."""
    empty = sum(not record[MASK_STRUCTURES_KEY] for records in datalist.splits.values() for record in records)
    return [f"note: {empty} masks are empty: these images contain no structure"] if empty else []


def structure_notes(datalist: Datalist, structures: Sequence[str]) -> list[str]:
    """Return a note with the number of masks that contain each structure; an empty list if there is only one.

    It reveals a structure with another name in the DICOM masks, which would be missing without a word.

    Args:
        datalist: Data list whose records have `medfl.data.targets.MASK_STRUCTURES_KEY`.
        structures: Names of the structures, without the background.
    """
    drawn = [record[MASK_STRUCTURES_KEY] for records in datalist.splits.values() for record in records]
    counts = [f"{name} in {sum(number in some for some in drawn)}" for number, name in enumerate(structures, 1)]
    return [f"note: structures in {len(drawn)} masks: {', '.join(counts)}"] if len(counts) > 1 else []


def _size_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
