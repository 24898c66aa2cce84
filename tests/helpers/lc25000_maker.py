"""Made-up releases of LC25000: its layout, pieces of a real micrograph as tiles, and Augmentor's rules for copies."""

from __future__ import annotations

from math import radians, tan
from pathlib import Path

import numpy as np
import skimage.data
from PIL import Image

from medfl_datasets.lc25000.copies import EDGE

PREFIXES = {
    "lung_image_sets/lung_aca": "lungaca",
    "lung_image_sets/lung_n": "lungn",
    "lung_image_sets/lung_scc": "lungscc",
    "colon_image_sets/colon_aca": "colonca",
    "colon_image_sets/colon_n": "colonn",
}
TILES, COPIES = 2, 3
"""Of each class in a made-up release: image n is a copy of tile n % 2."""


def tiles(edge: int = 128, stride: int = 64) -> list[Image.Image]:
    """Pieces of a stained section of 512 x 512 pixels; with these numbers 49 that overlap by half."""
    whole = skimage.data.immunohistochemistry()
    starts = range(0, 513 - edge, stride)
    return [Image.fromarray(whole[row : row + edge, column : column + edge]) for row in starts for column in starts]


def rectangle(edge: int, angle: int) -> tuple[int, int, int, int]:
    """What Augmentor 0.2.12 crops out of a turned and enlarged image of this edge; its own sums, rounding included."""
    slope = tan(radians(angle))
    left = slope * (edge - edge * slope) - slope**2
    top = slope * (edge - left)
    return round(left), round(top), round(edge - left), round(edge - top)


def copy(tile: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A copy as the authors made it: up to 25 degrees to a side, then flips, each with probability one half."""
    angle = int(rng.integers(0, 26))
    turned = tile.rotate(angle * int(rng.choice([-1, 1])), expand=True, resample=Image.Resampling.BICUBIC)
    found = turned.crop(rectangle(turned.width, angle)).resize(tile.size, Image.Resampling.BICUBIC)
    for flip in (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM):
        found = found.transpose(flip) if rng.integers(2) else found
    return found


def grey(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L").resize((EDGE, EDGE), Image.Resampling.BILINEAR))


def make_release(folder: Path) -> Path:
    """Six images of each class, and a stray dot file."""
    top, pieces, rng = folder / "lung_colon_image_set", tiles(128, 96), np.random.default_rng(3)
    for place, (name, prefix) in enumerate(PREFIXES.items()):
        (top / name).mkdir(parents=True)
        for number in range(TILES * COPIES):
            image = copy(pieces[place * TILES + number % TILES], rng)
            image.save(top / name / f"{prefix}{number + 1}.jpeg", quality=90)
    (top / "colon_image_sets" / "colon_n" / "._colonn1.jpeg").write_bytes(b"Mac OS X")
    return top
