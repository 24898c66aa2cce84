"""Convert the pixels of a mammogram to one row of an array: 16 bits, one size, chest wall on the left.

In this order:

1. **Range.** Grey values are scaled to 0 to 65535, each image by its own smallest and largest value without padding
   (see `medfl.data.readers.dicom`). If large values are dark (MONOCHROME1, a negative slope), they are inverted. A
   linear rescaling of the modality therefore has no effect.
2. **Breast crop**, on request: crop to the bounding box of the largest bright region, which removes labels and film
   edges.
3. **Size.** Along an edge that shrinks, each new pixel is the mean over its area; along an edge that grows, it is
   interpolated linearly. The aspect ratio is not preserved.
4. **Side**, on request: images with the chest wall on their right edge (right breasts as commonly displayed) are
   mirrored, so that the chest wall is on the left in all images.

Means are computed over 16-bit integers, which is four times as fast as over floats. The error is at most a few of 65535
levels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from medfl.errors import DataError, SettingsError, pip_install

if TYPE_CHECKING:
    from PIL.Image import Resampling

MAX_LEVEL = 65535
"""Largest value of a row: white."""

MAX_CROP_EDGE = 256
"""Maximum length, in pixels, of the longer edge of the reduced image in which the breast is located."""

LevelFunction = Callable[[np.ndarray], np.ndarray]
"""Function that converts some rows of pixels to 16-bit integers."""

_MIN_BREAST_SHARE = 0.02
"""Minimum share of the image that the breast must cover."""
_BLOCK_PIXELS = 1 << 19
"""Number of pixels that are processed at a time, so that they stay in the processor's cache."""


def to_row(
    pixels: np.ndarray,
    size: tuple[int, int],
    *,
    extent: tuple[float, float] | None = None,
    inverted: bool = False,
    crop: bool = False,
    mirror: bool = False,
) -> np.ndarray:
    """Convert an image to a row of an array.

    Args:
        pixels: Real numbers of shape (H, W).
        size: Height and width of the row, each >= 1.
        extent: Smallest and largest pixel if they are known (`extent_of`).
        inverted: Whether large pixels are dark.
        crop: Whether to crop to the breast; needs scikit-image.
        mirror: Whether to exchange left and right.

    Returns:
        Array of shape `size`, uint16. A constant image becomes zeros.

    Raises:
        DataError: If a value is not finite.
        SettingsError: If `crop` is True and scikit-image is not installed.
    """
    lift, base, top = _to_levels(pixels.dtype, extent or extent_of(pixels))
    if top == 0:
        return np.zeros(size, np.uint16)
    if crop:
        pixels = pixels[breast_box(pixels, inverted, lift)]
    small = resize(pixels, size, lift).astype(np.int32) - base
    if inverted:
        small = top - small
    if mirror:
        small = small[:, ::-1]
    return np.rint(small * (MAX_LEVEL / top)).clip(0, MAX_LEVEL).astype(np.uint16)


def extent_of(pixels: np.ndarray) -> tuple[float, float]:
    """Return the smallest and largest pixel of (H, W), found in one pass through the memory."""
    step = max(1, _BLOCK_PIXELS // pixels.shape[1])
    blocks = [pixels[start : start + step] for start in range(0, len(pixels), step)]
    extents = np.array([(block.min(), block.max()) for block in blocks])
    return extents[:, 0].min().item(), extents[:, 1].max().item()


def needs_mirror(laterality: str, toward_right: str = "") -> bool:
    """Return True if the chest wall is on the right edge of an image.

    Args:
        laterality: ``left``, ``right`` or empty.
        toward_right: Direction of the right edge in the patient: ``P`` (posterior), ``A`` (anterior, toward the
            nipple), or empty. It takes precedence over `laterality`.
    """
    return toward_right == "P" if toward_right else laterality == "right"


def _unchanged(rows: np.ndarray) -> np.ndarray:
    """Return the rows unchanged: they are 16-bit integers already."""
    return rows


def resize(pixels: np.ndarray, size: tuple[int, int], lift: LevelFunction = _unchanged) -> np.ndarray:
    """Resample (H, W) to `size`: area means along an edge that shrinks, linear interpolation along an edge that grows.

    Args:
        pixels: Real numbers; uint16 if `lift` is not given.
        size: Height and width of the result.
        lift: Function that converts rows of pixels to uint16. If both edges shrink, it receives a few rows at a time,
            which stay in the processor's cache.

    Returns:
        Array of shape `size`, uint16.
    """
    from PIL.Image import Resampling

    if size[0] <= pixels.shape[0] and size[1] <= pixels.shape[1]:
        return _shrink(pixels, size, lift)
    methods = [Resampling.BOX if new <= old else Resampling.BILINEAR for new, old in zip(size, pixels.shape)]
    return _resample(_resample(lift(pixels), (size[0], pixels.shape[1]), methods[0]), size, methods[1])


def _shrink(pixels: np.ndarray, size: tuple[int, int], lift: LevelFunction) -> np.ndarray:
    """Compute area means, a few rows of the result at a time."""
    from PIL.Image import Resampling

    scale, width = pixels.shape[0] / size[0], pixels.shape[1]
    result = np.empty(size, np.uint16)
    step = size[0] if lift is _unchanged else max(1, int(_BLOCK_PIXELS / (width * scale)))
    for start in range(0, size[0], step):
        end = min(start + step, size[0])
        first, last = int(start * scale), min(math.ceil(end * scale), len(pixels))
        area = (0, start * scale - first, width, min(end * scale, last) - first)
        result[start:end] = _resample(lift(pixels[first:last]), (end - start, size[1]), Resampling.BOX, area)
    return result


def breast_box(pixels: np.ndarray, inverted: bool = False, lift: LevelFunction = _unchanged) -> tuple[slice, slice]:
    """Find the bounding box of the breast: the largest connected region above Otsu's threshold.

    Args:
        pixels: Image (H, W), tissue brighter than the background; uint16 if `lift` is not given.
        inverted: Whether tissue is darker than the background.
        lift: As in `resize`.

    Returns:
        Slices of rows and columns. They cover the whole image if no region covers at least 2 % of it.

    Raises:
        SettingsError: If scikit-image is not installed.
    """
    try:
        from skimage.filters import threshold_otsu
        from skimage.measure import label, regionprops
    except ImportError:
        raise SettingsError(
            "missing_package",
            f"cutting out the breast needs scikit-image: {pip_install('mammography')}, or leave out --crop-breast.",
            package="scikit-image",
            extra="mammography",
        ) from None
    factor = max(1, math.ceil(max(pixels.shape) / MAX_CROP_EDGE))
    small = resize(pixels, (math.ceil(pixels.shape[0] / factor), math.ceil(pixels.shape[1] / factor)), lift)
    if small.min() == small.max():
        return slice(None), slice(None)
    small = small.max() - small if inverted else small - small.min()
    # tissue at the breast's edge is dark: the square root brightens it
    bright = small > threshold_otsu(np.sqrt(small)) ** 2
    region = max(regionprops(label(bright)), key=lambda candidate: candidate.area)
    if region.area < _MIN_BREAST_SHARE * small.size:
        return slice(None), slice(None)
    first_row, first_column, last_row, last_column = (edge * factor for edge in region.bbox)
    return slice(first_row, last_row), slice(first_column, last_column)


def _to_levels(dtype: np.dtype, extent: tuple[float, float]) -> tuple[LevelFunction, int, int]:
    """Choose how pixels become 16-bit integers for the computation of means.

    Returns:
        The conversion function, the integer of the smallest pixel, and the distance of the largest pixel from it. The
        distance is 0 for a constant image; otherwise at least half of `MAX_LEVEL`, so that means keep their precision.
    """
    low, high = extent
    spread = high - low
    if not np.isfinite(spread):
        raise DataError(
            "not_finite", "the image has values that are not finite (NaN or infinite). Replace them in the file."
        )
    if spread == 0:
        return _unchanged, 0, 0
    if dtype.kind not in "iu" or spread > MAX_LEVEL:
        return lambda rows: np.rint((rows - np.float64(low)) * (MAX_LEVEL / spread)).astype(np.uint16), 0, MAX_LEVEL
    shift = 16 - int(spread).bit_length()
    if shift == 0 and dtype == np.uint16:
        return _unchanged, int(low), int(spread)
    return functools.partial(_shift_to_levels, low=int(low), shift=shift), 0, int(spread) << shift


def _shift_to_levels(rows: np.ndarray, low: int, shift: int) -> np.ndarray:
    """Subtract the smallest value and multiply by a power of two.

    16-bit wrap-around gives the right result for signed and unsigned integers.
    """
    wrapped = rows.view(np.uint16) if rows.dtype.itemsize == 2 else rows.astype(np.uint16)
    levels = wrapped - np.uint16(low & MAX_LEVEL)
    levels <<= shift
    return levels


def _resample(
    levels: np.ndarray,
    size: tuple[int, int],
    method: Resampling,
    area: tuple[float, float, float, float] | None = None,
) -> np.ndarray:
    from PIL import Image

    if levels.shape == size:
        return levels
    return np.asarray(Image.fromarray(np.ascontiguousarray(levels)).resize((size[1], size[0]), method, box=area))
