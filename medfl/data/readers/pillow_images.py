"""Open images with Pillow, restricted to the formats listed here.

Pillow detects the format by a file's content and knows about fifty formats. For one of them (EPS) it starts an external
interpreter on the file's content. Therefore all image files are opened through this module, which names the permitted
formats. A file with the extension of one format must have that format. Messages never name a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medfl.data.readers.dicom_header import (
    MAX_PIXELS,
    check_regular_file,
    damaged_file_error,
    decoding,
    unopenable_file_error,
)
from medfl.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".bmp": "BMP",
    ".pgm": "PPM",
    ".ppm": "PPM",
}
"""Maps each file extension, in lower case, to the format that the file must have, as Pillow names it.

For other extensions, the content decides which of these formats it is.
"""

_SIGNATURES = {
    "PNG": (b"\x89PNG",),
    "JPEG": (b"\xff\xd8",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "BMP": (b"BM",),
    "PPM": (b"P2", b"P3", b"P5", b"P6"),
}
"""Maps each format to the first bytes of its files."""

TIFF_PHOTOMETRIC = 262
"""Tag of a TIFF that states whether small values are black (1) or white (0)."""

_GREY_MODES = ("1", "L", "LA")
"""Pillow modes of grey images with up to 8 bits."""
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
"""Pillow modes of colour images."""
_DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
"""Pillow modes of grey images with more than 8 bits."""


@contextlib.contextmanager
def open_pillow_image(path: Path) -> Iterator[PillowImage]:
    """Open an image without reading its pixels; close it when the block ends.

    Args:
        path: Path of the file.

    Yields:
        Pillow's image, in grey, or in colours of 8 bits.

    Raises:
        DataError: If the file can't be opened, has another format, too many pixels, several frames or an unsupported
            mode.
    """
    from PIL import Image, UnidentifiedImageError

    check_regular_file(path)
    expected = FORMATS.get(path.suffix.lower())
    with contextlib.ExitStack() as stack:
        try:
            formats = [expected] if expected else sorted(set(FORMATS.values()))
            image = stack.enter_context(Image.open(path, formats=formats))
        except UnidentifiedImageError as error:
            if expected and _starts_as(path, expected):
                raise damaged_file_error(error) from None
            raise _unknown_format_error(path.suffix.lower() if expected else "") from None
        except Image.DecompressionBombError:
            raise _too_large_error() from None
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise unopenable_file_error(error) from None
        except Exception as error:
            raise damaged_file_error(error) from None
        # do not rely on Pillow's own limit: it is a global variable that other code may change
        if image.width * image.height > MAX_PIXELS:
            raise _too_large_error()
        with decoding():
            frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
        if frames != 1:
            raise DataError(
                "several_frames",
                f"the image file holds {frames} frames, expected one. Save the frame to use in its own file.",
                found=frames,
            )
        _check_mode(image)
        yield image


def scale_to_unit(values: np.ndarray) -> np.ndarray:
    """Scale values by their smallest and largest value to [0, 1], float32.

    Raises:
        DataError: If a value is not finite.
    """
    unit = np.array(values, dtype=np.float32)
    low, high = unit.min(), unit.max()
    if not np.isfinite([low, high]).all():
        raise DataError(
            "not_finite", "the image has values that are not finite (NaN or infinite). Replace them in the file."
        )
    if low == high:
        return np.zeros_like(unit)
    unit -= low
    unit /= high - low
    return unit


def read_pillow_image(path: Path, scale: Callable[[np.ndarray], np.ndarray] = scale_to_unit) -> np.ndarray:
    """Return the pixels of an image at their original size.

    Args:
        path: Path of the file.
        scale: Function that scales the values of an image with more than 8 bits to [0, 1].

    Returns:
        uint8, (H, W) or (H, W, 3). For images with more than 8 bits float32 in [0, 1], (H, W), by default scaled by
        their own range.

    Raises:
        DataError: If the file can't be read; see `open_pillow_image`.
    """
    from PIL import ImageOps

    with open_pillow_image(path) as image:
        with decoding():
            turned = ImageOps.exif_transpose(image)
            turned.load()
        if is_deep(turned):
            values = np.asarray(turned)
            return scale(np.iinfo(values.dtype).max - values if _is_white_zero(image) else values)
        turned.info.pop("transparency", None)  # it has no effect in grey or RGB, but Pillow would warn
        with decoding():
            return np.asarray(turned.convert("RGB" if is_colour(turned) else "L"))


def is_deep(image: PillowImage) -> bool:
    """Return True if an image is grey with more than 8 bits per pixel."""
    return image.mode in _DEEP_MODES


def is_colour(image: PillowImage) -> bool:
    """Return True if an image is in colour."""
    return image.mode in _COLOUR_MODES


def _is_white_zero(image: PillowImage) -> bool:
    """Return True if large values of a TIFF are dark. Pillow inverts 8 bits itself, but not 16."""
    return bool(getattr(image, "tag_v2", {}).get(TIFF_PHOTOMETRIC) == 0)


def _starts_as(path: Path, kind: str) -> bool:
    """Return True if a file starts like files of a format, as Pillow names it."""
    with decoding(), path.open("rb") as file:
        return file.read(4).startswith(_SIGNATURES[kind])


def _unknown_format_error(ending: str) -> DataError:
    """Return the error for a file whose content has no permitted format, or not the format of its extension."""
    if ending:
        return DataError(
            "wrong_file_ending",
            f"the file is not an image of the kind that its extension states ({ending}). Give it the right extension, "
            "convert it, or leave it out.",
            ending=ending,
        )
    return DataError(
        "unsupported_file",
        "the file is no image of a known kind (PNG, JPEG, TIFF, BMP, PGM, DICOM, NIfTI). Convert it, or leave it out.",
    )


def _too_large_error() -> DataError:
    return DataError(
        "invalid_image_size",
        f"the image has more than {MAX_PIXELS // 10**6} million pixels. Crop or downsample it.",
        maximum=MAX_PIXELS,
    )


def _check_mode(image: PillowImage) -> None:
    """Raise if Pillow's mode is unsupported, or a colour image has more than 8 bits per channel."""
    if image.mode not in (*_GREY_MODES, *_DEEP_MODES, *_COLOUR_MODES):
        raise DataError(
            "unsupported_pixel_format",
            f"expected an image in grey, RGB, CMYK or with a palette, got {image.mode}. Convert it to RGB.",
            found=image.mode,
        )
    if not is_deep(image) and any(_hides_bits(tile[0], tile[3]) for tile in getattr(image, "tile", ())):
        raise DataError(
            "too_many_bits",
            "expected 8 bits a channel in an image with colour or an alpha channel, got more. Save it with 8 bits, "
            "or in grey without alpha.",
            maximum=8,
        )


def _hides_bits(codec: str, args: object) -> bool:
    """Return True if a tile has more than 8 bits per channel.

    Pillow drops the lower bits of colour images; only the decoder's arguments reveal them.
    """
    values = args if isinstance(args, tuple) else (args,)
    if codec.startswith("ppm"):
        return bool(values[-1] > 255)
    return any(isinstance(arg, str) and ";16" in arg for arg in values)
