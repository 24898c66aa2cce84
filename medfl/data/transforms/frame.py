"""Volumes on the one grid of an array: as ``medfl prep`` makes it, and as a bundle's inference comes there and back.

MONAI's transforms do the work, so that a bundle's ``inference.json`` can undo them (``Invertd``): a mask that a network
draws comes back on the grid of the file that it was drawn for.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai.data import MetaTensor, NibabelReader
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    MapTransform,
    NormalizeIntensityd,
    Orientationd,
    ResizeWithPadOrCropd,
    ScaleIntensityRanged,
    Spacingd,
)

from medfl.data.readers.volumes import SUFFIXES
from medfl.errors import DataError

IMAGE, LABEL = "image", "label"
"""Keys of a case: files of a volume and of its mask."""


@dataclass(frozen=True)
class Frame:
    """How a volume comes onto the grid of an array.

    1. It is turned to the nearest canonical orientation, ``Orientation("RAS")`` of MONAI: its axes (D, H, W) run from
       left to right, back to front and feet to head.
    2. With a spacing it is resampled: images trilinearly, masks to the nearest voxel.
    3. Its intensities are scaled. Without a window each channel of each volume gets mean 0 and standard deviation 1
       over all of its voxels (MRI has no scale of its own). With a window, for CT, they are clipped to it, and it
       becomes [0, 1].
    4. It is padded with zeros, or cut, on both sides alike to the size.

    Attributes:
        size: (D, H, W) in voxels.
        spacing: Of the voxels along each axis in millimetres; None leaves each volume its own.
        window: Lowest and highest intensity, such as (-100, 240) for soft tissue in CT; None for mean and deviation.
    """

    size: tuple[int, ...]
    spacing: tuple[float, ...] | None = None
    window: tuple[float, float] | None = None

    @functools.cache  # noqa: B019  # a handful of frames, of a few numbers each
    def read(self, mask: bool) -> Compose:
        """What reads a case, up to the padding: a dictionary with `IMAGE`, and with `LABEL` if there is a mask."""
        keys = [IMAGE, LABEL] if mask else [IMAGE]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # MONAI's, about how it calls itself
            steps: list[Any] = [LoadNiftid(keys), EnsureChannelFirstd(keys), Orientationd(keys, axcodes="RAS")]
        if self.spacing is not None:
            steps.append(Spacingd(keys, pixdim=self.spacing, mode=["bilinear", "nearest"][: len(keys)]))
        if self.window is None:
            return Compose([*steps, NormalizeIntensityd(IMAGE, channel_wise=True)])
        return Compose([*steps, ScaleIntensityRanged(IMAGE, *self.window, 0.0, 1.0, clip=True)])

    def fit(self, mask: bool) -> ResizeWithPadOrCropd:
        """What pads a case that was read to the size, or cuts it."""
        return ResizeWithPadOrCropd([IMAGE, LABEL] if mask else [IMAGE], spatial_size=self.size)


class LoadNiftid(MapTransform):
    """MONAI's ``LoadImaged`` for NIfTI files alone: it starts no other decoder, some of which speak up each time."""

    def __call__(self, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """Files to volumes, which know their affine and the name of their file."""
        loaded, reader = dict(data), NibabelReader()
        for key in self.key_iterator(loaded):
            values, meta = reader.get_data(reader.read(loaded[key]))
            loaded[key] = MetaTensor.ensure_torch_and_prune_meta(values, meta | {"filename_or_obj": str(loaded[key])})
        return loaded


def volume_transforms(
    size: Sequence[int], spacing: Sequence[float] | None = None, window: Sequence[float] | None = None
) -> Compose:
    """What a bundle's ``inference.json`` does to the file of a volume; arguments as in `Frame`.

    Args:
        size: (D, H, W) in voxels.
        spacing: Of the voxels in millimetres, or None.
        window: Lowest and highest intensity, or None.
    """
    low_high = None if window is None else (float(window[0]), float(window[1]))
    frame = Frame(tuple(size), None if spacing is None else tuple(map(float, spacing)), low_high)
    return Compose([*frame.read(mask=False).transforms, frame.fit(mask=False)])


def volume_files(folder: str | Path) -> list[dict[str, str]]:
    """The volumes of a folder and all folders in it, as `volume_transforms` takes them, in the order of their names.

    Raises:
        DataError: If there is none.
    """
    files = sorted(path for path in Path(folder).rglob("*") if path.name.lower().endswith(SUFFIXES))
    files = [path for path in files if path.is_file() and not path.name.startswith(".")]
    if not files:
        raise DataError(
            "no_images",
            f"expected volumes ({' or '.join(SUFFIXES)}) in {folder}, found none. Give a folder of NIfTI files: the "
            "arrays of a site don't say where their volumes lie in space.",
            path=folder,
        )
    return [{IMAGE: str(path)} for path in files]
