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

import numpy as np
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
from monai.utils import MetaKeys, SpaceKeys

from medfl.data.readers.dicom_series import ImageSource, SeriesFiles, source_files
from medfl.data.readers.image_reading import parse_image_reading
from medfl.data.readers.images import read_voxels, volume_grid
from medfl.data.readers.itk_files import ITK_SUFFIXES
from medfl.data.readers.segmentations import read_volume_mask
from medfl.data.readers.series_folder import find_series, fits
from medfl.data.readers.volumes import SUFFIXES
from medfl.errors import DataError

IMAGE, LABEL = "image", "label"
"""Keys of a case in MONAI transforms: `IMAGE` for the volume, `LABEL` for its mask."""

IS_RESAMPLED = "is_resampled"
"""Key in a mask's metadata: whether the mask was on another grid than its image."""


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
    def read(self, mask: bool, structures: tuple[str, ...] = (), resample_masks: bool = False) -> Compose:
        """Return the transform that reads a case and performs steps 1 to 3.

        Args:
            mask: Whether the case has `LABEL` in addition to `IMAGE`.
            structures: Names of the structures in masks that are not NIfTI files, without the background; see
                `medfl.data.readers.segmentations.read_volume_mask`.
            resample_masks: Whether masks on another grid than their image are resampled to it; `structures` then also
                apply to NIfTI files.
        """
        keys = [IMAGE, LABEL] if mask else [IMAGE]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # MONAI warns about its own default arguments
            steps: list[Any] = [LoadVolumesd(keys, structures, resample_masks), EnsureChannelFirstd(keys)]
            steps.append(Orientationd(keys, axcodes="RAS"))
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


class LoadVolumesd(MapTransform):
    """MONAI's ``LoadImaged`` for the volumes and masks that medfl reads.

    A NIfTI file is read by MONAI's reader. Other volumes, such as DICOM series, are read as their own values: HU in CT.
    Their masks, and DICOM masks of NIfTI files, are read on the grid of the image.

    Args:
        keys: Keys of the case, `IMAGE` and perhaps `LABEL`.
        structures: Names of the structures in masks that are not NIfTI files, without the background.
        resample_masks: Whether masks on another grid than their image are resampled to it. NIfTI files with masks are
            then read like other volumes, so that their grids may differ.
    """

    def __init__(self, keys: Sequence[str], structures: Sequence[str] = (), resample_masks: bool = False) -> None:
        super().__init__(keys)
        self._structures, self._resample_masks = tuple(structures), resample_masks

    def __call__(self, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the case with volumes in place of files; their metadata contain the affine and the file name.

        The metadata of a mask that was resampled contain `IS_RESAMPLED`.

        Raises:
            DataError: If a file other than a NIfTI file can't be read.
        """
        loaded, reader = dict(data), NibabelReader()
        keys = list(self.key_iterator(loaded))
        is_nifti = all(_is_nifti(data[key]) for key in keys) and not (self._resample_masks and LABEL in keys)
        for key in keys:
            if is_nifti:
                values, meta = reader.get_data(reader.read(data[key]))
            else:
                values, meta = self._read(data, key)
            meta = meta | {"filename_or_obj": _name(data[key])}
            loaded[key] = MetaTensor.ensure_torch_and_prune_meta(values, meta)
        return loaded

    def _read(self, data: Mapping[Any, Any], key: str) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the voxels and the metadata of a volume, or of its mask, of which not both are NIfTI files."""
        volume, flags = _source(data[IMAGE]), {}
        if key == LABEL:
            mask = read_volume_mask(Path(data[LABEL]), volume, self._structures, resample=self._resample_masks)
            values, affine = mask.values, volume_grid(volume).affine
            flags = {IS_RESAMPLED: mask.is_resampled}
        else:
            voxels = read_voxels(volume)
            values, affine = voxels.values, voxels.affine
        meta = {"affine": affine, "original_affine": affine, "spatial_shape": np.array(values.shape)}
        return values, meta | flags | {MetaKeys.SPACE: SpaceKeys.RAS, MetaKeys.ORIGINAL_CHANNEL_DIM: float("nan")}


def _source(source: str | ImageSource) -> ImageSource:
    """Return the source of a volume that a case names."""
    return Path(source) if isinstance(source, str) else source


def _is_nifti(source: str | ImageSource) -> bool:
    """Return True if a case names a NIfTI file."""
    return not isinstance(source, SeriesFiles) and str(source).lower().endswith(SUFFIXES)


def _name(source: str | ImageSource) -> str:
    """Return the path by which a predicted mask is named: the file, or the first file of a DICOM series."""
    first = str(source_files(_source(source))[0])
    is_named = first.lower().endswith((*SUFFIXES, *ITK_SUFFIXES, ".dcm"))
    return first if is_named else f"{first}.dcm"  # without it, MONAI would cut off the last part of a UID


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


def volume_files(folder: str | Path, image_reading: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the volumes in a folder, at any depth, as cases for `volume_transforms`, in the order of their paths.

    Volumes are NIfTI, NRRD and MHA files, and DICOM series.

    Args:
        folder: Folder to search.
        image_reading: Rule for reading images, from the data list of the training data. Only its conditions for DICOM
            series are used: other series are passed over. None accepts every series.

    Raises:
        DataError: If there is none, or a DICOM file is damaged.
        SettingsError: If the rule is invalid.
    """
    suffixes = (*SUFFIXES, *ITK_SUFFIXES)
    files = [path for path in Path(folder).rglob("*") if path.name.lower().endswith(suffixes)]
    sources: list[Any] = [str(path) for path in files if path.is_file() and not path.name.startswith(".")]
    choice = parse_image_reading(image_reading).series
    sources += [series.source() for series in find_series(Path(folder)) if fits(series, choice)]
    if not sources:
        raise DataError(
            "no_images",
            f"expected volumes ({', '.join(suffixes)}, or DICOM series) in {folder}, found none. Give a folder of "
            "volume files: the arrays of a site don't say where their volumes lie in space.",
            path=folder,
        )
    return [{IMAGE: source} for source in sorted(sources, key=_name)]
