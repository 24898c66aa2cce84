"""Read one image file, the same way when a data set is prepared and when a trained network is used.

What is read: the pictures of `medfl.data.readers.pictures` (PNG, JPEG, TIFF, BMP, PGM), DICOM, NIfTI volumes, and, with
`itk`, NRRD and MHA files, which follow the rules of NIfTI. The rules:

- Files with 8 bits a channel (also DICOM files in colour) give uint8, with their values as they are. All others (DICOM
  in grey, NIfTI, images of 16 or 32 bits) give float32 in [0, 1]: each image is scaled by its own smallest and largest
  value. No window of the scanner is applied (`medfl.data.readers.mammogram_image` does it). An image of one value only
  becomes zeros.
- DICOM: rescale slope and intercept, or the lookup table in their place, are applied first; MONOCHROME1, where large
  values are dark, is inverted. Pixels that pad an image become background.
- NIfTI: a volume is turned to the nearest canonical orientation, ``Orientation("RAS")`` of MONAI: its axes (D, H, W)
  run from left to right, back to front and feet to head. One slice is an image with the two axes that are left.
- The orientation that a camera notes in a JPEG file (EXIF) is applied. Of the images in a phone's JPEG file (MPO) the
  first counts. An alpha channel and a transparent colour are left out. Colour of 16 bits a channel is refused.
- Size: each axis is resampled linearly, with a filter as wide as the shrinkage, so that nothing is skipped
  (antialiasing). The aspect ratio is not kept and nothing is cut off.

Messages never name a file, because its name may be a patient's: the caller knows which one it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.readers.dicom import read_dicom
from medfl.data.readers.dicom_header import cannot_open, decoding, is_dicom, open_dicom
from medfl.data.readers.dicom_identity import check_identity, is_burned_in, refuse_identity
from medfl.data.readers.dicom_intent import intent_of
from medfl.data.readers.itk_files import ITK_SUFFIXES, open_itk
from medfl.data.readers.pictures import FORMATS, in_colour, is_deep, open_picture, read_picture, to_unit
from medfl.data.readers.volumes import SUFFIXES
from medfl.errors import DataError, SettingsError

IMAGE_SUFFIXES = (*FORMATS, ".dcm", *SUFFIXES, *ITK_SUFFIXES)
"""Ends of file names, in small letters, that say that a file is an image. Others can be read by their full name."""

MOST_VOXELS = 512 * 512 * 2048
"""Above this number of voxels a NIfTI file is refused: a small compressed file may claim any number."""


@dataclass(frozen=True)
class ImageKind:
    """What a file holds, as far as its head tells.

    Attributes:
        dims: 2 for an image, 3 for a volume.
        colour: Whether it has three channels.
        deep: Whether it gives float32 in [0, 1]; otherwise uint8.
        intent: The presentation intent of a DICOM file in grey (`medfl.data.readers.dicom_intent`); empty for others.
    """

    dims: int
    colour: bool
    deep: bool
    intent: str = ""


def look_at(path: Path, check: str = "strip") -> ImageKind:
    """What an image file holds; its pixels are not read.

    Args:
        path: The file.
        check: One of `medfl.data.readers.dicom_identity.CHECKS`: what becomes of DICOM files that may tell who the
        patient is.

    Raises:
        DataError: If it is no image, or of a kind that can't be read.
    """
    kind = kind_of(path)
    if kind == "volume":
        with decoding():
            volume = _open_volume(path)
        _check_volume(volume)
        return ImageKind(2 if _is_slice(volume.shape) else 3, colour=False, deep=True)
    if kind == "dicom":
        header = open_dicom(path, pixels=False)
        if check == "refuse":
            with decoding():
                refuse_identity(check_identity(header), is_burned_in(header))
        colour = header.SamplesPerPixel == 3
        return ImageKind(2, colour=colour, deep=not colour, intent="" if colour else intent_of(header))
    with open_picture(path) as image:
        return ImageKind(2, colour=in_colour(image), deep=is_deep(image))


def read_image(path: Path, size: tuple[int, ...], channels: int) -> np.ndarray:
    """Read an image file; see the module for the rules.

    Args:
        path: The file.
        size: (H, W) for an image, (D, H, W) for a volume, each >= 1.
        channels: 1 for grey, 3 for colour. Colour becomes grey by the weights of ITU-R BT.601; grey is repeated.

    Returns:
        Shape (H, W), (H, W, 3) or (D, H, W); uint8, or float32 in [0, 1].

    Raises:
        DataError: If the file is no image, is damaged, or is of a kind that can't be read or does not fit the size.
        SettingsError: If the number of channels is impossible.
    """
    if channels not in (1, 3):
        raise SettingsError(
            "setting_out_of_range",
            f"expected 1 or 3 channels, got {channels}",
            setting="channels",
            expected=[1, 3],
            found=channels,
        )
    kind = kind_of(path)
    pixels = {"volume": _read_volume, "dicom": _read_dicom}.get(kind, read_picture)(path)
    if kind == "volume" and pixels.ndim == 3:
        return _volume(pixels, size, channels)
    if len(size) != 2:
        raise DataError(
            "wrong_dimensions",
            f"expected a volume for the size {_times(size)}, got a 2-D image. Give two numbers.",
            expected=len(size),
            found=2,
        )
    return _picture(pixels, (size[0], size[1]), channels)


def image_size(path: Path) -> tuple[int, ...]:
    """The size that `read_image` finds before it changes it: (H, W), or (D, H, W) of a volume.

    Raises:
        DataError: As `read_image` does.
    """
    kind = kind_of(path)
    pixels = {"volume": _read_volume, "dicom": _read_dicom}.get(kind, read_picture)(path)
    return tuple(pixels.shape if kind == "volume" else pixels.shape[:2])


def _picture(pixels: np.ndarray, size: tuple[int, int], channels: int) -> np.ndarray:
    from PIL import Image

    if pixels.ndim == 3 and channels == 1:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    resized = _resize(pixels, size)
    return np.repeat(resized[..., np.newaxis], 3, axis=-1) if channels == 3 and resized.ndim == 2 else resized


def _volume(voxels: np.ndarray, size: tuple[int, ...], channels: int) -> np.ndarray:
    if len(size) != 3:
        raise DataError(
            "wrong_dimensions",
            f"expected a 2-D image for the size {_times(size)}, got a volume. Give three numbers.",
            expected=len(size),
            found=3,
        )
    if channels != 1:
        raise SettingsError(
            "setting_out_of_range",
            "volumes have one channel, got 3. Give --channels 1.",
            setting="channels",
            expected=[1],
            found=channels,
        )
    planes = np.stack([_resize(plane, (size[1], size[2])) for plane in voxels])
    return _resize(planes.reshape(len(planes), -1), (size[0], size[1] * size[2])).reshape(size)


def _resize(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resample (H, W) or (H, W, 3)."""
    from PIL import Image

    if plane.shape[:2] == size:
        return plane
    return np.asarray(Image.fromarray(plane).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def kind_of(path: Path) -> str:
    """What a file is read as: ``volume`` by the end of its name, ``dicom`` by that or its first bytes, or ``picture``.

    A name that ends as that of a picture counts more than the first bytes: `medfl.data.readers.pictures` then checks
    them.

    Raises:
        DataError: If it can't be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.read(132)
    except OSError as error:
        raise cannot_open(error) from None
    if path.name.lower().endswith((*SUFFIXES, *ITK_SUFFIXES)):
        return "volume"
    dicom = path.suffix.lower() == ".dcm" or (is_dicom(head) and path.suffix.lower() not in FORMATS)
    return "dicom" if dicom else "picture"


def _read_dicom(path: Path) -> np.ndarray:
    image = read_dicom(path)
    if image.pixels.ndim == 3:
        return image.pixels
    unit = to_unit(image.values())
    return 1 - unit if image.inverted else unit


def _open_volume(path: Path) -> Any:
    import nibabel

    return open_itk(path, MOST_VOXELS) if path.name.lower().endswith(ITK_SUFFIXES) else nibabel.load(path)


def _check_volume(volume: Any) -> None:
    if math.prod(volume.shape) > MOST_VOXELS:
        raise DataError(
            "invalid_image_size",
            f"expected a volume of up to {MOST_VOXELS // 10**6} million voxels, its head states "
            f"{_times(volume.shape)}. Cut out or shrink what matters.",
            maximum=MOST_VOXELS,
            found=[int(length) for length in volume.shape],
        )
    if volume.get_data_dtype().fields is not None or volume.get_data_dtype().kind not in "iuf":
        raise DataError(
            "unsupported_pixel_format",
            "expected a NIfTI volume of real numbers, got colours or complex numbers. Convert it.",
        )
    if len(volume.shape) < 3 or any(length != 1 for length in volume.shape[3:]):
        raise DataError(
            "wrong_shape",
            f"expected one NIfTI volume of three axes, got the shape {_times(volume.shape)}. "
            "Save the volume to use in its own file.",
            found=[int(length) for length in volume.shape],
        )


def _read_volume(path: Path) -> np.ndarray:
    import nibabel

    with decoding():
        volume = _open_volume(path)
    _check_volume(volume)
    with decoding():
        turned = nibabel.as_closest_canonical(volume)
        values = np.asarray(turned.dataobj, dtype=np.float32)
    unit = to_unit(values.reshape(values.shape[:3]))
    return unit.squeeze() if _is_slice(unit.shape) else unit


def _is_slice(shape: tuple[int, ...]) -> bool:
    """Whether a volume is one plane of pixels."""
    return sorted(length > 1 for length in shape[:3]) == [False, True, True]


def _times(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
