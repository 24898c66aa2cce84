"""Masks beside images: read together as one row, and kept in an array of their own.

A row is read with its mask as the last channel, so that both are read, noted and left out together; at the end the
array is taken apart.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.datalists import Datalist
from medfl.data.readers.rgb import resize
from medfl.data.targets import IN_MASK, STRUCTURES
from medfl.errors import DataError
from medfl.ingest.array_file import new_array
from medfl.ingest.checkpoint import ARRAY
from medfl.ingest.workers import LoadedItem

MASKS = "masks.npy"
"""The array of masks in the folder of a pooled data set."""

CHUNK_BYTES = 16 << 20
"""What is taken apart at a time."""


def masked_row(pixels: np.ndarray, mask: np.ndarray, structures: int) -> LoadedItem:
    """A row of an image with its mask.

    Args:
        pixels: (*spatial, C).
        mask: (*spatial), whole numbers from 0 to `structures` - 1.
        structures: How many there are, with the background.

    Returns:
        (*spatial, C + 1) of the type of `pixels`, and which structures the mask holds.

    Raises:
        DataError: If the mask is of another size than its image, or holds a number that no structure has.
    """
    if mask.shape != pixels.shape[:-1]:
        raise DataError(
            "wrong_shape",
            f"the mask is {_times(mask.shape)}, its image {_times(pixels.shape[:-1])}. Export it again.",
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
    return LoadedItem(row, {IN_MASK: [int(value) for value in values if value > 0]})


def masked_picture(image: np.ndarray, mask: np.ndarray, size: tuple[int, int]) -> LoadedItem:
    """A row of a picture with the mask of its lesion, at another size.

    A pixel of the resized mask is lesion where at least half of what it covers is.

    Args:
        image: (H, W) or (H, W, 3), uint8.
        mask: (H, W) or (H, W, colours): 0 outside of lesions, one other value within, such as 1 or 255.
        size: Height and width of the result.

    Returns:
        (*size, C + 1), uint8, and which structures the mask holds: [1] or none.

    Raises:
        DataError: If the mask is of another size than its image, or holds more than two values.
    """
    flat = mask if mask.ndim == 2 else mask.max(axis=-1)
    if flat.shape != image.shape[:2]:
        raise DataError(
            "wrong_shape",
            f"the mask is {_times(flat.shape)}, its image {_times(image.shape[:2])}. Export it again.",
            what="mask",
            expected=image.shape[:2],
            found=flat.shape,
        )
    values = np.unique(flat[flat > 0])
    if len(values) > 1:
        raise DataError(
            "ambiguous_mask",
            f"the mask holds {len(values)} values beside 0, expected one, for the lesion. Save it as PNG, not as JPEG, "
            "and without smooth edges.",
            count=len(values),
        )
    pixels = resize(image, size)
    share = resize((flat > 0).astype(np.uint8) * 255, size)
    return masked_row(pixels.reshape(*size, -1), (share >= 128).astype(np.uint8), 2)


def take_apart(folder: Path) -> None:
    """Turn the array of rows with masks in a folder into one of images and one of masks (`MASKS`).

    Images of one channel lose the axis of channels; masks are uint8. Neither is held in memory.

    Raises:
        DataError: If the disk is full.
    """
    both = np.load(folder / ARRAY, mmap_mode="r", allow_pickle=False)
    shape = both.shape[:-1] if both.shape[-1] == 2 else (*both.shape[:-1], both.shape[-1] - 1)
    step = max(1, CHUNK_BYTES // max(1, both[:1].nbytes))
    alone = folder / "alone.npy"
    with new_array(alone, shape, both.dtype) as images, new_array(folder / MASKS, both.shape[:-1], np.uint8) as masks:
        for start in range(0, len(both), step):
            some = np.asarray(both[start : start + step])
            images.write(start, some[..., :-1].reshape(len(some), *shape[1:]))
            masks.write(start, some[..., -1])
        images.flush()
        masks.flush()
    os.replace(alone, folder / ARRAY)


def with_masks(datalist: Datalist, structures: Sequence[str], spacing: Sequence[float] | None = None) -> Datalist:
    """The list of images whose masks are in `MASKS`.

    Args:
        datalist: The list; its records have `medfl.data.targets.IN_MASK`.
        structures: Their names by their numbers, the background first.
        spacing: Of the voxels in millimetres; None where nobody knows.
    """
    objective: dict[str, Any] = {"name": "segmentation", "channels": len(structures)}
    if spacing is not None:
        objective["spacing"] = list(map(float, spacing))
    return replace(
        datalist, objective=objective, mask_array=MASKS, extra={STRUCTURES: list(structures)} | datalist.extra
    )


STRATA = ("nothing in the mask", "something in the mask")
"""What images are counted by (`medfl.objectives.Segmentation.stratum_names`)."""


def about_empty(datalist: Datalist) -> list[str]:
    """What to say of empty masks: they stay, since that nothing is there is worth to be learned."""
    empty = sum(not record[IN_MASK] for records in datalist.splits.values() for record in records)
    return [f"note: {empty} masks are empty: nothing is to be found in these images"] if empty else []


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
