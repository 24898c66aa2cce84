"""Read one file of a mammogram, the same way in every preparation and when a trained network is used.

How the images of a data set were read stands in its data list, under ``reading``: an object with entries of `READING`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.readers.dicom import DicomImage, read_dicom
from medfl.data.readers.dicom_header import MAMMOGRAPHY
from medfl.data.readers.images import kind_of
from medfl.data.readers.mammograms import extent_of, needs_mirror, to_row
from medfl.data.readers.pictures import read_picture
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
        path: DICOM, or a picture (PGM, PNG, JPEG, TIFF); of colours the first channel counts.
        size: Height and width, each >= 1.
        channels: 1, or 3 to repeat it.
        crop_breast: Whether to cut out the breast.
        align: Whether to mirror right breasts; for DICOM files, which say what they show.
        voi: Whether the window for display is applied, for DICOM files that have one. Alone it is for images of other
            modalities, too.

    Returns:
        Shape (H, W), or (H, W, 3), uint16; see `medfl.data.readers.mammograms`.

    Raises:
        DataError: If it can't be read, is in colour, or does not say which breast it shows where that is needed.
        SettingsError: If the size or the channels are impossible.
    """
    if len(size) != 2 or channels not in (1, 3):
        raise SettingsError(
            "setting_out_of_range",
            f"expected a height and a width, and 1 or 3 channels; got {list(size)} and {channels}",
            size=list(size),
            channels=channels,
        )
    of_any = voi and not (crop_breast or align)
    image = open_mammogram(path, voi=voi, modalities=None if of_any else MAMMOGRAPHY)
    if align and not (image.laterality or image.toward_right):
        raise DataError(
            "missing_laterality",
            "the file does not say which breast it shows, so that its chest wall can't be brought to the left as in "
            "the other images. Give DICOM files with ImageLaterality or PatientOrientation.",
        )
    row = row_of(image, (size[0], size[1]), crop=crop_breast, mirror=align and mirrored(image))
    return row if channels == 1 else np.repeat(row[..., np.newaxis], 3, axis=-1)


def check_reading(reading: Mapping[str, bool]) -> dict[str, bool]:
    """All entries of `READING`, of which some may be given.

    Raises:
        SettingsError: If one is unknown, or no truth value.
    """
    for name, value in reading.items():
        if name not in READING:
            raise SettingsError(
                "unknown_setting",
                f"unknown way to read mammograms '{name}'. {did_you_mean(name, READING)}",
                setting=name,
            )
        if not isinstance(value, bool):
            raise SettingsError(
                "wrong_setting_type",
                f"expected true or false for '{name}' in the way to read mammograms, got {value!r}",
                setting=name,
                expected="bool",
                found=type(value).__name__,
            )
    return READING | dict(reading)


def open_mammogram(
    path: Path,
    *,
    voi: bool = False,
    modalities: Collection[str] | None = MAMMOGRAPHY,
    pseudonyms: Collection[str] = (),
) -> DicomImage:
    """The grey values of a file, and what it says of them; a picture says nothing.

    Args:
        path: As in `read_mammogram`.
        voi: As in `read_mammogram`.
        modalities: What is accepted of DICOM files; None means any.
        pseudonyms: Names and numbers of patients that identify nobody.

    Raises:
        DataError: If it can't be read, or is a DICOM file in colour.
    """
    if kind_of(path) != "dicom":
        pixels = read_picture(path)
        grey = pixels[..., 0] if pixels.ndim == 3 else pixels  # copies as JPEG may store grey as colour
        return DicomImage(grey, inverted=False, extent=extent_of(grey))
    image = read_dicom(path, voi=voi, modalities=modalities, pseudonyms=pseudonyms)
    if image.pixels.ndim == 3:
        raise DataError("colour_image", "expected a mammogram in grey, got colours. Export it in grey.")
    return image


def row_of(image: DicomImage, size: tuple[int, int], *, crop: bool, mirror: bool) -> np.ndarray:
    """A row of an array of mammograms, of shape `size`; see `medfl.data.readers.mammograms.to_row`."""
    inverted = image.inverted != (image.slope < 0)
    return to_row(image.pixels, size, extent=image.extent, inverted=inverted, crop=crop, mirror=mirror)


def mirrored(image: DicomImage, laterality: str = "") -> bool:
    """Whether an image shows its chest wall on the right; `laterality` is what else is known of its side."""
    return needs_mirror(laterality or image.laterality, image.toward_right)


def about_reading(reading: Mapping[str, bool]) -> dict[str, Any]:
    """What a data list says of how its mammograms were read.

    Args:
        reading: Entries of `READING`.
    """
    return {
        "intensities": "each image: its smallest value 0, its largest 65535; bright tissue is large",
        "reading": dict(reading),
        "chest_wall": "on the left in all images" if reading.get("align") else "as stored",
    }
