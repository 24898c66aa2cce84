"""Read 8-bit colour images at their original size, and resize them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.data.readers.pillow_images import read_pillow_image
from medfl.errors import DataError

MIN_EDGE = 8
"""Minimum length of an edge in pixels; a smaller image is refused."""


def read_rgb(path: Path) -> np.ndarray:
    """Read an image as RGB.

    Args:
        path: File in a format that Pillow reads.

    Returns:
        Array (H, W, 3), uint8; grey is repeated, alpha is ignored.

    Raises:
        DataError: If the file can't be read, has more than 8 bits per channel, or an edge below `MIN_EDGE`.
    """
    pixels = read_pillow_image(path)
    if pixels.dtype != np.uint8:
        raise DataError(
            "too_many_bits",
            "expected an image of 8 bits a channel, got more. Take the files of the release, or save it with 8 bits.",
            maximum=8,
        )
    if min(pixels.shape[:2]) < MIN_EDGE:
        raise DataError(
            "image_too_small",
            f"expected {MIN_EDGE} pixels or more along each edge, got {min(pixels.shape[:2])}. Download it again.",
            minimum=MIN_EDGE,
            found=min(pixels.shape[:2]),
        )
    return np.repeat(pixels[..., np.newaxis], 3, axis=-1) if pixels.ndim == 2 else pixels


def resize(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image with antialiasing.

    Args:
        pixels: Image (H, W) or (H, W, 3), uint8.
        size: Height and width of the result.
    """
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR))
