"""A made-up LC25000: its layout, blots for tissue, and Augmentor's rules for copies. Nobody gave tissue for it."""

from __future__ import annotations

from math import radians, tan
from pathlib import Path

import numpy as np
from PIL import Image

from medfl_datasets.lc25000.files import CLASSES

TILES, COPIES = 2, 3
"""Of each class."""

_WIDTHS = (1.5, 3.0, 6.0)
_STAIN, _GLASS = np.array((110, 60, 140.0)), np.array((245, 225, 235.0))


def write_release(folder: Path, tiles: int = TILES, copies: int = COPIES, edge: int = 128, seed: int = 0) -> Path:
    """Write a release, with a file beside the images that is none.

    Args:
        folder: Where to write; made if it is not there.
        tiles: Of each class.
        copies: Of each tile; image n of a class, from 0, is a copy of tile n modulo `tiles`.
        edge: Height and width of the images in pixels; the real ones have 768.
        seed: Seed of all draws.

    Returns:
        The folder ``lung_colon_image_set``.
    """
    top, rng = folder / "lung_colon_image_set", np.random.default_rng(seed)
    for name, tissue in CLASSES.items():
        pieces = [draw_tile(edge, rng) for _ in range(tiles)]
        images = top / f"{tissue.organ}_image_sets" / name
        images.mkdir(parents=True)
        for number in range(tiles * copies):
            path = images / f"{tissue.prefix}{number + 1}.jpeg"
            copied(pieces[number % tiles], rng).save(path, quality=90)
    (top / "colon_image_sets" / "colon_n" / "._colonn1.jpeg").write_bytes(b"Mac OS X")
    return top


def draw_tile(edge: int, rng: np.random.Generator) -> Image.Image:
    """Blots of several sizes in the colours of a stained section, like no other tile's.

    Args:
        edge: Height and width in pixels.
        rng: Source of randomness.
    """
    from scipy import ndimage

    blots = np.zeros((edge, edge))
    for width in _WIDTHS:
        noise = ndimage.gaussian_filter(rng.standard_normal((edge, edge)), width, mode="wrap")
        blots += noise / noise.std()
    cover = 1 / (1 + np.exp(-2 * blots))[..., None]
    return Image.fromarray((cover * _STAIN + (1 - cover) * _GLASS).astype(np.uint8))


def rectangle(edge: int, angle: int) -> tuple[int, int, int, int]:
    """What Augmentor 0.2.12 crops out of a turned and enlarged image of this edge; its own sums, rounding included."""
    slope = tan(radians(angle))
    left = slope * (edge - edge * slope) - slope**2
    top = slope * (edge - left)
    return round(left), round(top), round(edge - left), round(edge - top)


def copied(tile: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A copy as the authors made it: up to 25 degrees to a side, then flips, each with probability one half."""
    angle = int(rng.integers(0, 26))
    turned = tile.rotate(angle * int(rng.choice([-1, 1])), expand=True, resample=Image.Resampling.BICUBIC)
    image = turned.crop(rectangle(turned.width, angle)).resize(tile.size, Image.Resampling.BICUBIC)
    for flip in (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM):
        image = image.transpose(flip) if rng.integers(2) else image
    return image
