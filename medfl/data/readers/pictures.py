"""Open the pictures that Pillow reads, of the formats listed here and no others.

Pillow tells a format by a file's content and knows some fifty of them; for one (EPS) it starts an outside interpreter
on what the file says. So every file is opened here, where the formats are named. A file whose name ends as one of them
must be of that one: nothing is read under a false name. Messages never name a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medfl.data.readers.dicom_header import MOST_PIXELS, cannot_open, damaged, decoding
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
"""End of a file's name, in small letters, to the format that it must have, as Pillow calls it. Under other names the
content decides which of these it is."""

_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_DEEP = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


@contextlib.contextmanager
def open_picture(path: Path) -> Iterator[PillowImage]:
    """Open a picture; its pixels are not read.

    Args:
        path: The file.

    Yields:
        Pillow's image, in grey or in colours of 8 bits; it is closed at the end.

    Raises:
        DataError: If it can't be opened, is of another format, or has too many pixels, more than one frame or other
            colours.
    """
    from PIL import Image, UnidentifiedImageError

    expected = FORMATS.get(path.suffix.lower())
    with contextlib.ExitStack() as stack:
        try:
            formats = [expected] if expected else sorted(set(FORMATS.values()))
            image = stack.enter_context(Image.open(path, formats=formats))
        except UnidentifiedImageError:
            raise _unknown(path.suffix.lower() if expected else "") from None
        except Image.DecompressionBombError:
            raise _too_large() from None
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise cannot_open(error) from None
        except Exception as error:
            raise damaged(error) from None
        if image.width * image.height > MOST_PIXELS:  # Pillow's own limit is a variable that anyone may change
            raise _too_large()
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


def read_picture(path: Path) -> np.ndarray:
    """The pixels of a picture, at the size they have.

    Returns:
        uint8, (H, W) or (H, W, 3); or of deeper ones float32 in [0, 1], (H, W), each by its own range.

    Raises:
        DataError: If it can't be read; see `open_picture`.
    """
    from PIL import ImageOps

    with open_picture(path) as image:
        with decoding():
            turned = ImageOps.exif_transpose(image)
            turned.load()
        if is_deep(turned):
            return to_unit(np.asarray(turned))
        turned.info.pop("transparency", None)  # it has no say in grey or RGB, but Pillow would warn
        return np.asarray(turned.convert("RGB" if in_colour(turned) else "L"))


def is_deep(image: PillowImage) -> bool:
    """Whether an image has more than 8 bits a pixel, in grey."""
    return image.mode in _DEEP


def in_colour(image: PillowImage) -> bool:
    """Whether an image has colours."""
    return image.mode in _COLOUR


def to_unit(values: np.ndarray) -> np.ndarray:
    """Scale by the own smallest and largest value to [0, 1], float32.

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


def _unknown(ending: str) -> DataError:
    if ending:
        return DataError(
            "wrong_file_ending",
            f"the file is no image of the kind that the end of its name says ({ending}). Give it the ending of its own "
            "kind, convert it, or leave it out.",
            ending=ending,
        )
    return DataError(
        "unsupported_file",
        "the file is no image of a known kind (PNG, JPEG, TIFF, BMP, PGM, DICOM, NIfTI). Convert it, or leave it out.",
    )


def _too_large() -> DataError:
    return DataError(
        "invalid_image_size",
        f"the image has more than {MOST_PIXELS // 10**6} million pixels. Cut out or shrink what matters.",
        maximum=MOST_PIXELS,
    )


def _check_mode(image: PillowImage) -> None:
    if image.mode not in (*_GREY, *_DEEP, *_COLOUR):
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
    """Whether a piece has more than 8 bits: Pillow drops the lower ones in colour, only the way to decode tells."""
    values = args if isinstance(args, tuple) else (args,)
    if codec.startswith("ppm"):
        return bool(values[-1] > 255)
    return any(isinstance(arg, str) and ";16" in arg for arg in values)
