"""Read one image file, the same way when a data set is prepared and when a trained network is used.

What is read: what Pillow reads (PNG, JPEG, TIFF, BMP, ...), DICOM, and NIfTI volumes. The rules are few:

- Files with 8 bits a channel (also DICOM files in colour) give uint8, with their values as they are. All others (DICOM
  in grey, NIfTI, images of 16 or 32 bits) give float32 in [0, 1]: each image is scaled by its own smallest and largest
  value. No window of the scanner is applied, and values that pad an image are not treated apart: what is needed for
  one modality has to be done before. An image of one value only becomes zeros.
- DICOM: rescale slope and intercept, or the lookup table in their place, are applied first; MONOCHROME1, where large
  values are dark, is inverted.
- NIfTI: a volume is turned to the nearest canonical orientation, ``Orientation("RAS")`` of MONAI: its axes (D, H, W)
  run from left to right, back to front and feet to head. One slice is an image with the two axes that are left.
- The orientation that a camera notes in a JPEG file (EXIF) is applied. Of the images in a phone's JPEG file (MPO) the
  first counts. An alpha channel and a transparent colour are left out. Colour of 16 bits a channel is refused.
- Size: each axis is resampled linearly, with a filter as wide as the shrinkage, so that nothing is skipped
  (antialiasing). The aspect ratio is not kept and nothing is cut off.

Messages never name a file, because its name may be a patient's: the caller knows which one it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.data.dicom import read_dicom
from medfl.data.dicom_header import decoding, is_dicom, open_dicom
from medfl.data.dicom_identity import check_identity, is_burned_in, refuse_identity
from medfl.errors import DataError, SettingsError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".pgm", ".dcm", ".nii", ".nii.gz")
"""Ends of file names, in small letters, that say that a file is an image. Others can be read by their full name."""

_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_DEEP = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True)
class Kind:
    """What a file holds, as far as its head tells.

    Attributes:
        dims: 2 for an image, 3 for a volume.
        colour: Whether it has three channels.
        deep: Whether it gives float32 in [0, 1]; otherwise uint8.
    """

    dims: int
    colour: bool
    deep: bool


def look_at(path: Path, check: str = "strip") -> Kind:
    """What an image file holds; its pixels are not read.

    Args:
        path: The file.
        check: One of `medfl.data.dicom_identity.CHECKS`: what becomes of DICOM files that may tell who the patient is.

    Raises:
        DataError: If it is no image, or of a kind that can't be read.
    """
    kind = _format(path)
    if kind == "nifti":
        with decoding():
            volume = _open_nifti(path)
        _check_nifti(volume)
        return Kind(2 if _is_slice(volume.shape) else 3, colour=False, deep=True)
    if kind == "dicom":
        header = open_dicom(path, pixels=False)
        if check == "refuse":
            with decoding():
                refuse_identity(check_identity(header), is_burned_in(header))
        colour = header.SamplesPerPixel == 3
        return Kind(2, colour=colour, deep=not colour)
    with _open_pillow(path) as image:
        return Kind(2, colour=image.mode not in (*_GREY, *_DEEP), deep=image.mode in _DEEP)


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
        raise SettingsError(f"expected 1 or 3 channels, got {channels}")
    kind = _format(path)
    pixels = {"nifti": _read_nifti, "dicom": _read_dicom}.get(kind, read_picture)(path)
    if kind == "nifti" and pixels.ndim == 3:
        return _volume(pixels, size, channels)
    if len(size) != 2:
        raise DataError(f"expected a volume for the size {_times(size)}, got a 2-D image. Give two numbers.")
    return _picture(pixels, (size[0], size[1]), channels)


def _picture(pixels: np.ndarray, size: tuple[int, int], channels: int) -> np.ndarray:
    from PIL import Image

    if pixels.ndim == 3 and channels == 1:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    resized = _resize(pixels, size)
    return np.repeat(resized[..., np.newaxis], 3, axis=-1) if channels == 3 and resized.ndim == 2 else resized


def _volume(voxels: np.ndarray, size: tuple[int, ...], channels: int) -> np.ndarray:
    if len(size) != 3:
        raise DataError(f"expected a 2-D image for the size {_times(size)}, got a volume. Give three numbers.")
    if channels != 1:
        raise SettingsError("volumes have one channel, got 3. Give --channels 1.")
    planes = np.stack([_resize(plane, (size[1], size[2])) for plane in voxels])
    return _resize(planes.reshape(len(planes), -1), (size[0], size[1] * size[2])).reshape(size)


def _resize(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resample (H, W) or (H, W, 3)."""
    from PIL import Image

    if plane.shape[:2] == size:
        return plane
    return np.asarray(Image.fromarray(plane).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def _to_unit(values: np.ndarray) -> np.ndarray:
    """Scale by the own smallest and largest value to [0, 1], float32."""
    unit = np.array(values, dtype=np.float32)
    low, high = unit.min(), unit.max()
    if not np.isfinite([low, high]).all():
        raise DataError("the image has values that are not finite (NaN or infinite). Replace them in the file.")
    if low == high:
        return np.zeros_like(unit)
    unit -= low
    unit /= high - low
    return unit


def _format(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(132)
    except OSError as error:
        raise DataError(f"the image file can't be opened: {error.strerror}. Check the file and its rights.") from None
    if path.name.lower().endswith((".nii", ".nii.gz")):
        return "nifti"
    return "dicom" if is_dicom(head) or path.name.lower().endswith(".dcm") else "pillow"


def _one_frame(frames: int) -> None:
    if frames != 1:
        raise DataError(f"the image file holds {frames} frames, expected one. Save the frame to use in its own file.")


@contextlib.contextmanager
def _open_pillow(path: Path) -> Iterator[PillowImage]:
    from PIL import Image, UnidentifiedImageError

    with contextlib.ExitStack() as stack:
        try:
            image = stack.enter_context(Image.open(path))
        except UnidentifiedImageError:
            raise DataError(
                "the file is no image of a known kind (PNG, JPEG, TIFF, BMP, DICOM, NIfTI). "
                "Convert it, or leave it out."
            ) from None
        except Image.DecompressionBombError:
            raise DataError("the image has more than 178 million pixels. Cut out or shrink what matters.") from None
        except Exception as error:
            raise DataError(f"the image file is damaged ({type(error).__name__}). Export it again.") from None
        with decoding():
            frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
        _one_frame(frames)
        _check_mode(image)
        yield image


def _check_mode(image: PillowImage) -> None:
    if image.mode not in (*_GREY, *_DEEP, *_COLOUR):
        raise DataError(f"expected an image in grey, RGB, CMYK or with a palette, got {image.mode}. Convert it to RGB.")
    if image.mode not in _DEEP and any(_is_deep(tile[0], tile[3]) for tile in getattr(image, "tile", ())):
        raise DataError(
            "expected 8 bits a channel in an image with colour or an alpha channel, got more. Save it with 8 bits, "
            "or in grey without alpha."
        )


def _is_deep(codec: str, args: object) -> bool:
    """Whether a piece has more than 8 bits: Pillow drops the lower ones in colour, only the way to decode tells."""
    given = args if isinstance(args, tuple) else (args,)
    if codec.startswith("ppm"):
        return bool(given[-1] > 255)
    return any(isinstance(arg, str) and ";16" in arg for arg in given)


def read_picture(path: Path) -> np.ndarray:
    """The pixels of what Pillow reads, at the size they have: uint8, (H, W) or (H, W, 3), or float32 in [0, 1], (H, W).

    Raises:
        DataError: If it can't be read.
    """
    from PIL import ImageOps

    with _open_pillow(path) as image:
        with decoding():
            turned = ImageOps.exif_transpose(image)
            turned.load()
        if turned.mode in _DEEP:
            return _to_unit(np.asarray(turned))
        turned.info.pop("transparency", None)  # it has no say in grey or RGB, but Pillow would warn
        return np.asarray(turned.convert("L" if turned.mode in _GREY else "RGB"))


def _read_dicom(path: Path) -> np.ndarray:
    image = read_dicom(path)
    if image.pixels.ndim == 3:
        return image.pixels
    unit = _to_unit(image.values())
    return 1 - unit if image.inverted else unit


def _open_nifti(path: Path) -> Any:
    import nibabel

    return nibabel.load(path)


def _check_nifti(volume: Any) -> None:
    if volume.get_data_dtype().fields is not None or volume.get_data_dtype().kind not in "iuf":
        raise DataError("expected a NIfTI volume of real numbers, got colours or complex numbers. Convert it.")
    if len(volume.shape) < 3 or any(length != 1 for length in volume.shape[3:]):
        raise DataError(
            f"expected one NIfTI volume of three axes, got the shape {_times(volume.shape)}. "
            "Save the volume to use in its own file."
        )


def _read_nifti(path: Path) -> np.ndarray:
    import nibabel

    with decoding():
        volume = _open_nifti(path)
    _check_nifti(volume)
    with decoding():
        turned = nibabel.as_closest_canonical(volume)
        values = np.asarray(turned.dataobj, dtype=np.float32)
    unit = _to_unit(values.reshape(values.shape[:3]))
    return unit.squeeze() if _is_slice(unit.shape) else unit


def _is_slice(shape: tuple[int, ...]) -> bool:
    """Whether a volume is one plane of pixels."""
    return sorted(length > 1 for length in shape[:3]) == [False, True, True]


def _times(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
