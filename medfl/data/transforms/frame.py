"""Bring volumes onto one grid, in the same way in ``medfl prep`` and in a bundle's inference.

A grid is the number of voxels and the voxel size along each axis. A case is the file of a volume, with the file of its
mask if it has one.

MONAI transforms do the work, so that a bundle's ``inference.json`` can invert them (``Invertd``). A predicted mask
therefore returns to the grid of its original file.
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
"""Keys of a case in MONAI transforms: `IMAGE` for the volume, `LABEL` for its mask."""


@dataclass(frozen=True)
class Frame:
    """Target grid and intensity scale of volumes.

    A volume is processed in these steps:

    1. It is rotated to the nearest canonical orientation, MONAI's ``Orientation("RAS")``: its axes (D, H, W) run from
       left to right, back to front and feet to head.
    2. With a spacing, it is resampled: images trilinearly, masks to the nearest voxel.
    3. Its intensities are scaled. Without a window, each channel of each volume is normalised to mean 0 and standard
       deviation 1 over all of its voxels (MRI has no absolute scale). With a window, for CT, intensities are clipped to
       it and mapped to [0, 1].
    4. It is padded with zeros, or cropped, symmetrically to the size.

    Attributes:
        size: Number of voxels along each axis, (D, H, W).
        spacing: Voxel spacing along each axis in millimetres; None keeps each volume's spacing.
        window: Lowest and highest intensity, such as (-100, 240) for soft tissue in CT; None normalises mean and
            deviation.
    """

    size: tuple[int, ...]
    spacing: tuple[float, ...] | None = None
    window: tuple[float, float] | None = None

    @functools.cache  # noqa: B019  # a handful of frames, of a few numbers each
    def read(self, mask: bool) -> Compose:
        """Return the transform that reads a case and performs steps 1 to 3.

        Args:
            mask: Whether the case has `LABEL` in addition to `IMAGE`.
        """
        keys = [IMAGE, LABEL] if mask else [IMAGE]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # MONAI warns about its own default arguments
            steps: list[Any] = [LoadNiftid(keys), EnsureChannelFirstd(keys), Orientationd(keys, axcodes="RAS")]
        if self.spacing is not None:
            steps.append(Spacingd(keys, pixdim=self.spacing, mode=["bilinear", "nearest"][: len(keys)]))
        if self.window is None:
            return Compose([*steps, NormalizeIntensityd(IMAGE, channel_wise=True)])
        return Compose([*steps, ScaleIntensityRanged(IMAGE, *self.window, 0.0, 1.0, clip=True)])

    def fit(self, mask: bool) -> ResizeWithPadOrCropd:
        """Return the transform that pads or crops a case to the size (step 4).

        Args:
            mask: Whether the case has `LABEL` in addition to `IMAGE`.
        """
        return ResizeWithPadOrCropd([IMAGE, LABEL] if mask else [IMAGE], spatial_size=self.size)


class LoadNiftid(MapTransform):
    """MONAI's ``LoadImaged`` restricted to NIfTI files. It constructs no other readers and so avoids their warnings."""

    def __call__(self, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the case with volumes in place of files; their metadata contain the affine and the file name."""
        loaded, reader = dict(data), NibabelReader()
        for key in self.key_iterator(loaded):
            values, meta = reader.get_data(reader.read(loaded[key]))
            loaded[key] = MetaTensor.ensure_torch_and_prune_meta(values, meta | {"filename_or_obj": str(loaded[key])})
        return loaded


def volume_transforms(
    size: Sequence[int], spacing: Sequence[float] | None = None, window: Sequence[float] | None = None
) -> Compose:
    """Return the transforms that a bundle's ``inference.json`` applies to a volume file; they perform steps 1 to 4.

    Args:
        size: Number of voxels along each axis, (D, H, W).
        spacing: Voxel spacing along each axis in millimetres; None keeps each volume's spacing.
        window: Lowest and highest intensity, mapped to 0 and 1; None normalises mean and deviation.
    """
    low_high = None if window is None else (float(window[0]), float(window[1]))
    frame = Frame(tuple(size), None if spacing is None else tuple(map(float, spacing)), low_high)
    return Compose([*frame.read(mask=False).transforms, frame.fit(mask=False)])


def volume_files(folder: str | Path) -> list[dict[str, str]]:
    """Return the volumes in a folder, at any depth, as cases for `volume_transforms`, in the order of their paths.

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
