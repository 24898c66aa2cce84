"""Read one mammogram file, in the same way in every preparation and during inference.

The data list stores the reading options of its images under ``reading``: an object with keys of `READING`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.readers.dicom import DicomImage, read_dicom
from medfl.data.readers.dicom_header import MAMMOGRAPHY
from medfl.data.readers.images import file_kind
from medfl.data.readers.mammograms import extent_of, needs_mirror, to_row
from medfl.data.readers.pillow_images import read_pillow_image
from medfl.errors import DataError, SettingsError, did_you_mean

READING = {"crop_breast": False, "align": False, "voi": False}
"""Default value of each reading option of mammograms.

``crop_breast``: crop the image to the breast. ``align``: mirror right breasts. ``voi``: apply the display window.
"""


def read_mammogram(
    path: Path,
    size: tuple[int, ...],
    channels: int,
    *,
    crop_breast: bool = False,
    align: bool = False,
    voi: bool = False,
) -> np.ndarray:
    """Read a whole mammogram, or a lesion cut out of one, as a row of an array.

    Args:
        path: DICOM file, or another image (PGM, PNG, JPEG, TIFF); of a colour image the first channel is used.
        size: Height and width, each >= 1.
        channels: 1, or 3 to repeat the channel.
        crop_breast: Whether to crop the image to the breast.
        align: Whether to mirror right breasts; needs DICOM files that state the side or orientation.
        voi: Whether to apply the display window of a DICOM file. Without the other options, other modalities are
            accepted too.

    Returns:
        Array of shape (H, W) or (H, W, 3), uint16; see `medfl.data.readers.mammograms`.

    Raises:
        DataError: If the file can't be read, is a colour DICOM file, or does not state its side although `align` needs
            it.
        SettingsError: If the size or the number of channels is impossible.
    """
    if len(size) != 2 or channels not in (1, 3):
        raise SettingsError(
            "setting_out_of_range",
            f"expected a height and a width, and 1 or 3 channels; got {list(size)} and {channels}",
            size=list(size),
            channels=channels,
        )
    accepts_any_modality = voi and not (crop_breast or align)
    image = open_mammogram(path, voi=voi, modalities=None if accepts_any_modality else MAMMOGRAPHY)
    if align and not (image.laterality or image.toward_right):
        raise DataError(
            "missing_laterality",
            "the file does not state which breast it shows, so its chest wall can't be aligned to the left as in the "
            "other images. Give DICOM files with ImageLaterality or PatientOrientation.",
        )
    row = mammogram_row(image, (size[0], size[1]), crop=crop_breast, mirror=align and has_chest_wall_right(image))
    return row if channels == 1 else np.repeat(row[..., np.newaxis], 3, axis=-1)


def check_reading(reading: Mapping[str, bool]) -> dict[str, bool]:
    """Return the reading options completed by the defaults of `READING`.

    Raises:
        SettingsError: If an option is unknown, or its value is not a Boolean.
    """
    for name, value in reading.items():
        if name not in READING:
            raise SettingsError(
                "unknown_setting",
                f"unknown reading option of mammograms '{name}'. {did_you_mean(name, READING)}",
                setting=name,
            )
        if not isinstance(value, bool):
            raise SettingsError(
                "wrong_setting_type",
                f"expected true or false for the reading option '{name}' of mammograms, got {value!r}",
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
    """Read the grey values and the metadata of a file; files other than DICOM have no metadata.

    Args:
        path: As in `read_mammogram`.
        voi: As in `read_mammogram`.
        modalities: Accepted modalities of DICOM files; None accepts any.
        pseudonyms: Patient names and identifiers that are known to be pseudonyms.

    Raises:
        DataError: If the file can't be read, or is a colour DICOM file.
    """
    if file_kind(path) != "dicom":
        pixels = read_pillow_image(path)
        grey = pixels[..., 0] if pixels.ndim == 3 else pixels  # JPEG copies may store grey as colour
        return DicomImage(grey, inverted=False, extent=extent_of(grey))
    image = read_dicom(path, voi=voi, modalities=modalities, pseudonyms=pseudonyms)
    if image.pixels.ndim == 3:
        raise DataError("colour_image", "expected a mammogram in grey, got colours. Export it in grey.")
    return image


def mammogram_row(image: DicomImage, size: tuple[int, int], *, crop: bool, mirror: bool) -> np.ndarray:
    """Convert an image to a row of an array: scale its grey values to 16 bits and resize it.

    Args:
        image: Grey image.
        size: Height and width of the row.
        crop: Whether to crop the image to the breast.
        mirror: Whether to exchange left and right.

    Returns:
        Array of shape `size`, uint16.
    """
    inverted = image.inverted != (image.slope < 0)
    return to_row(image.pixels, size, extent=image.extent, inverted=inverted, crop=crop, mirror=mirror)


def has_chest_wall_right(image: DicomImage, laterality: str = "") -> bool:
    """Return True if the chest wall is on the right edge of an image.

    Args:
        image: Image with metadata.
        laterality: Side from another source, which takes precedence over the file's.
    """
    return needs_mirror(laterality or image.laterality, image.toward_right)


def reading_entries(reading: Mapping[str, bool]) -> dict[str, Any]:
    """Return the data list entries that describe how mammograms were read.

    Args:
        reading: Reading options, with keys of `READING`.

    Returns:
        The entries ``intensities``, ``reading`` and ``chest_wall``.
    """
    return {
        "intensities": "each image: its smallest value 0, its largest 65535; bright tissue is large",
        "reading": dict(reading),
        "chest_wall": "on the left in all images" if reading.get("align") else "as stored",
    }
