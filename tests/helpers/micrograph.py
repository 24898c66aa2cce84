"""Pieces of a real micrograph, and what the hash of LC25000's tiles looks at."""

from __future__ import annotations

import numpy as np
import skimage.data
from PIL import Image

from medfl_datasets.lc25000.copies import THUMBNAIL_EDGE


def tiles(edge: int = 128, stride: int = 64) -> list[Image.Image]:
    """Pieces of a stained section of 512 x 512 pixels; with these numbers 49 that overlap by half."""
    whole = skimage.data.immunohistochemistry()
    starts = range(0, 513 - edge, stride)
    return [Image.fromarray(whole[row : row + edge, column : column + edge]) for row in starts for column in starts]


def grey(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L").resize((THUMBNAIL_EDGE, THUMBNAIL_EDGE), Image.Resampling.BILINEAR))
