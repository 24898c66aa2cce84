"""From the pixels of a film or a detector to one row of an array: 16 bits, one size, chest wall on the left.

In this order:

1. **Range.** Grey values become 0 to 65535, each image by its own smallest and largest value (without what pads it, see
   `medfl.data.readers.dicom`); where large values are dark (MONOCHROME1, a negative slope) they are inverted. So linear
   rescaling of the modality has no effect.
2. **Breast crop**, on request: the smallest rectangle around the largest bright region. Labels and film edges fall
   away.
3. **Size.** Where an edge shrinks, each new pixel is the mean over its area; where it grows, it is interpolated
   linearly. The aspect ratio is not kept.
4. **Side**, on request: images with the chest wall on their right edge (right breasts as they are commonly displayed)
   are mirrored, so that it is on the left edge in all of them.

Means are taken over integers of 16 bits, which is four times as fast as over floats; they are off by a few of 65535
levels at most.
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

TOP = 65535
"""The largest value of a row: white."""

CROP_EDGE = 256
"""The breast is looked for in an image whose longer edge has this many pixels at most."""

Lift = Callable[[np.ndarray], np.ndarray]
"""Makes integers of 16 bits of some rows of pixels."""

_LEAST_BREAST = 0.02
_BLOCK = 1 << 19


def to_row(
    pixels: np.ndarray,
    size: tuple[int, int],
    *,
    extent: tuple[float, float] | None = None,
    inverted: bool = False,
    crop: bool = False,
    mirror: bool = False,
) -> np.ndarray:
    """One image as a row of an array.

    Args:
        pixels: Real numbers of shape (H, W).
        size: Height and width of the row, each >= 1.
        extent: The smallest and the largest pixel, if they are known (`extent_of`).
        inverted: Whether large pixels are dark.
        crop: Whether to cut out the breast; needs scikit-image.
        mirror: Whether to exchange left and right.

    Returns:
        Shape `size`, uint16. An image of one value becomes zeros.

    Raises:
        DataError: If a value is not finite.
        SettingsError: If `crop` needs a package that is missing.
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
    return np.rint(small * (TOP / top)).clip(0, TOP).astype(np.uint16)


def extent_of(pixels: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest pixel of (H, W), both found in one pass through the memory."""
    step = max(1, _BLOCK // pixels.shape[1])
    blocks = [pixels[start : start + step] for start in range(0, len(pixels), step)]
    extents = np.array([(block.min(), block.max()) for block in blocks])
    return extents[:, 0].min().item(), extents[:, 1].max().item()


def needs_mirror(laterality: str, toward_right: str = "") -> bool:
    """Whether an image has its chest wall on the right edge.

    Args:
        laterality: ``left``, ``right`` or empty.
        toward_right: What the file says of its right edge: ``P`` (toward the back), ``A`` (toward the nipple), or
            empty. It counts more than the side.
    """
    return toward_right == "P" if toward_right else laterality == "right"


def _same(rows: np.ndarray) -> np.ndarray:
    return rows


def resize(pixels: np.ndarray, size: tuple[int, int], lift: Lift = _same) -> np.ndarray:
    """Resample (H, W) to `size`: means over areas along an edge that shrinks, linear along one that grows.

    Args:
        pixels: Real numbers; uint16 if `lift` is not given.
        size: Height and width.
        lift: Makes uint16 of some rows of them. Where both edges shrink, it gets a few rows at a time, which stay in
            the processor's cache.

    Returns:
        Shape `size`, uint16.
    """
    from PIL.Image import Resampling

    if size[0] <= pixels.shape[0] and size[1] <= pixels.shape[1]:
        return _shrink(pixels, size, lift)
    methods = [Resampling.BOX if new <= old else Resampling.BILINEAR for new, old in zip(size, pixels.shape)]
    return _resample(_resample(lift(pixels), (size[0], pixels.shape[1]), methods[0]), size, methods[1])


def _shrink(pixels: np.ndarray, size: tuple[int, int], lift: Lift) -> np.ndarray:
    """Means over areas; the areas of a few rows of the result after those of the ones before."""
    from PIL.Image import Resampling

    scale, width = pixels.shape[0] / size[0], pixels.shape[1]
    result = np.empty(size, np.uint16)
    step = size[0] if lift is _same else max(1, int(_BLOCK / (width * scale)))
    for start in range(0, size[0], step):
        end = min(start + step, size[0])
        first, last = int(start * scale), min(math.ceil(end * scale), len(pixels))
        area = (0, start * scale - first, width, min(end * scale, last) - first)
        result[start:end] = _resample(lift(pixels[first:last]), (end - start, size[1]), Resampling.BOX, area)
    return result


def breast_box(pixels: np.ndarray, inverted: bool = False, lift: Lift = _same) -> tuple[slice, slice]:
    """The smallest rectangle around the breast: the largest connected region above Otsu's threshold.

    Args:
        pixels: (H, W), tissue brighter than the background; uint16 if `lift` is not given.
        inverted: Whether tissue is darker.
        lift: As in `resize`.

    Returns:
        Rows and columns. The whole image if no region covers at least 2 % of it.

    Raises:
        SettingsError: If scikit-image is missing.
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
    factor = max(1, math.ceil(max(pixels.shape) / CROP_EDGE))
    small = resize(pixels, (math.ceil(pixels.shape[0] / factor), math.ceil(pixels.shape[1] / factor)), lift)
    if small.min() == small.max():
        return slice(None), slice(None)
    small = small.max() - small if inverted else small - small.min()
    bright = small > threshold_otsu(np.sqrt(small)) ** 2  # tissue at the breast's edge is dark: the root lifts it
    region = max(regionprops(label(bright)), key=lambda candidate: candidate.area)
    if region.area < _LEAST_BREAST * small.size:
        return slice(None), slice(None)
    first_row, first_column, last_row, last_column = (edge * factor for edge in region.bbox)
    return slice(first_row, last_row), slice(first_column, last_column)


def _to_levels(dtype: np.dtype, extent: tuple[float, float]) -> tuple[Lift, int, int]:
    """How pixels become integers of 16 bits for the means, what the smallest becomes, and how far the largest is away.

    The distance is 0 if all pixels are equal; otherwise at least half of `TOP`, so that means keep their precision.
    """
    low, high = extent
    spread = high - low
    if not np.isfinite(spread):
        raise DataError(
            "not_finite", "the image has values that are not finite (NaN or infinite). Replace them in the file."
        )
    if spread == 0:
        return _same, 0, 0
    if dtype.kind not in "iu" or spread > TOP:
        return lambda rows: np.rint((rows - np.float64(low)) * (TOP / spread)).astype(np.uint16), 0, TOP
    shift = 16 - int(spread).bit_length()
    if shift == 0 and dtype == np.uint16:
        return _same, int(low), int(spread)
    return functools.partial(_lift, low=int(low), shift=shift), 0, int(spread) << shift


def _lift(rows: np.ndarray, low: int, shift: int) -> np.ndarray:
    """Integers less the smallest, times a power of two; 16 bits wrap around to the right result whatever the sign."""
    wrapped = rows.view(np.uint16) if rows.dtype.itemsize == 2 else rows.astype(np.uint16)
    levels = wrapped - np.uint16(low & TOP)
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
