"""Mammograms to predict, read exactly as ``medfl prep mias`` and ``medfl prep cbis_ddsm`` read them for training.

How images were read stands in the data list, under ``reading``: an object with the arguments of `read_mammogram` that
are true or false. Data sets without it, such as those of MedMNIST, are read by `medfl.data.images`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.datalists import read_datalist
from medfl.data.dicom import DicomImage, read_dicom
from medfl.data.dicom_header import MAMMOGRAPHY
from medfl.data.images import kind_of, read_image
from medfl.data.inference import ImageFiles, SiteImages, load_images
from medfl.data.mammograms import needs_mirror, to_row
from medfl.data.pictures import read_picture
from medfl.data.sites import site_names
from medfl.errors import DataError, SettingsError, did_you_mean

READING = {"crop_breast": False, "align": False, "voi": False}
"""What may be said of how mammograms are read, and what is meant where it is not said."""


def read_mammogram(
    path: Path,
    size: tuple[int, ...],
    channels: int,
    *,
    crop_breast: bool = False,
    align: bool = False,
    voi: bool = False,
) -> np.ndarray:
    """Read a whole mammogram, or a lesion that was cut out of one.

    Args:
        path: DICOM, or what Pillow reads (PGM, PNG, JPEG, TIFF); of colours the first channel counts.
        size: Height and width, each >= 1.
        channels: 1, or 3 to repeat it.
        crop_breast: Whether to cut out the breast.
        align: Whether to mirror right breasts; for DICOM files, which say what they show.
        voi: Whether the window for display is applied, for DICOM files that have one.

    Returns:
        Shape (H, W), or (H, W, 3), uint16; see `medfl.data.mammograms`.

    Raises:
        DataError: If it can't be read, is in colour, or does not say which breast it shows where that is needed.
        SettingsError: If the size or the channels are impossible.
    """
    if len(size) != 2 or channels not in (1, 3):
        raise SettingsError(f"expected a height and a width, and 1 or 3 channels; got {list(size)} and {channels}")
    image = _read(path, voi)
    if align and not (image.laterality or image.toward_right):
        raise DataError(
            "the file does not say which breast it shows, and the network was trained with the chest wall on the left "
            "in all images. Give DICOM files with ImageLaterality or PatientOrientation."
        )
    row = to_row(
        image.pixels,
        (size[0], size[1]),
        inverted=image.inverted != (image.slope < 0),
        crop=crop_breast,
        mirror=align and needs_mirror(image.laterality, image.toward_right),
    )
    return row if channels == 1 else np.repeat(row[..., np.newaxis], 3, axis=-1)


def load_mammograms(
    dataset_dir: str | Path,
    reading: Mapping[str, bool] | None,
    size: int | Sequence[int],
    spatial_dims: int,
    in_channels: int,
    num_classes: int,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
) -> ImageFiles | SiteImages:
    """What a bundle's ``inference.json`` predicts.

    Args:
        dataset_dir: A folder of image files, or the folder of a site, whose test images are then taken.
        reading: How mammograms were read for training, entries of `READING`; None means by `medfl.data.images`.
        size: Spatial size that the network takes; one number stands for all edges.
        spatial_dims: 2 for images, 3 for volumes.
        in_channels: Channels that the network takes.
        num_classes: Number of classes.
        mean: As in training.
        std: As in training.

    Raises:
        DataError: If the folder is not there or holds nothing to predict.
        SettingsError: If there is no such way to read.
    """
    ways: dict[str, Any] = {} if reading is None else dict(_checked(reading))
    read = read_image if reading is None else partial(read_mammogram, **ways)
    return load_images(dataset_dir, size, spatial_dims, in_channels, num_classes, mean, std, read=read)


def how_read(dataset_dir: str | Path, otherwise: Mapping[str, bool] | None) -> dict[str, bool] | None:
    """How the mammograms of a partitioned data set were read.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        otherwise: What the configuration has as long as the data can't be read.

    Returns:
        All entries of `READING`; None if the data set does not say it.

    Raises:
        SettingsError: If the data set says something unknown.
    """
    try:
        site = Path(dataset_dir) / site_names(Path(dataset_dir))[0]
        found = read_datalist(site).extra.get("reading")
    except DataError:
        return None if otherwise is None else _checked(otherwise)
    return None if found is None else _checked(found)


def _checked(reading: Mapping[str, bool]) -> dict[str, bool]:
    for name, value in reading.items():
        if name not in READING:
            raise SettingsError(f"unknown way to read mammograms '{name}'. {did_you_mean(name, READING)}")
        if not isinstance(value, bool):
            raise SettingsError(f"expected true or false for '{name}' in the way to read mammograms, got {value!r}")
    return READING | dict(reading)


def _read(path: Path, voi: bool) -> DicomImage:
    if kind_of(path) == "dicom":
        image = read_dicom(path, voi=voi, modalities=MAMMOGRAPHY)
        if image.pixels.ndim == 3:
            raise DataError("expected a mammogram in grey, got colours. Export it in grey.")
        return image
    pixels = read_picture(path)
    return DicomImage(pixels[..., 0] if pixels.ndim == 3 else pixels, inverted=False)
