"""Write a synthetic LC25000 release: its layout, random blots as tissue, and copies made by Augmentor's rules."""

from __future__ import annotations

from math import radians, tan
from pathlib import Path

import numpy as np
from PIL import Image

from medfl_datasets.lc25000.files import CLASSES

TILES, COPIES = 2, 3
"""Defaults of `write_release`: `TILES` is the number of tiles of each class, `COPIES` that of copies of a tile."""

_WIDTHS = (1.5, 3.0, 6.0)
_STAIN, _GLASS = np.array((110, 60, 140.0)), np.array((245, 225, 235.0))


def write_release(folder: Path, tiles: int = TILES, copies: int = COPIES, edge: int = 128, seed: int = 0) -> Path:
    """Write the class folders with copies of random tiles, and one file that is not an image.

    Args:
        folder: Target folder; created if needed.
        tiles: Number of tiles of each class.
        copies: Number of copies of each tile. Image n of a class, from 0, is a copy of tile n modulo `tiles`.
        edge: Height and width of the images in pixels; real images have 768.
        seed: Seed of all random numbers.

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
            make_copy(pieces[number % tiles], rng).save(path, quality=90)
    (top / "colon_image_sets" / "colon_n" / "._colonn1.jpeg").write_bytes(b"Mac OS X")
    return top


def draw_tile(edge: int, rng: np.random.Generator) -> Image.Image:
    """Draw a random tile: blots of several sizes in the colours of a stained section.

    Args:
        edge: Height and width in pixels.
        rng: Random number generator.
    """
    from scipy import ndimage

    blots = np.zeros((edge, edge))
    for width in _WIDTHS:
        noise = ndimage.gaussian_filter(rng.standard_normal((edge, edge)), width, mode="wrap")
        blots += noise / noise.std()
    cover = 1 / (1 + np.exp(-2 * blots))[..., None]
    return Image.fromarray((cover * _STAIN + (1 - cover) * _GLASS).astype(np.uint8))


def crop_rectangle(edge: int, angle: int) -> tuple[int, int, int, int]:
    """Compute the box that Augmentor 0.2.12 crops from a rotated and enlarged image, with Augmentor's rounding.

    Args:
        edge: Edge of the enlarged image in pixels.
        angle: Rotation in degrees.

    Returns:
        Left, top, right and bottom in pixels.
    """
    slope = tan(radians(angle))
    left = slope * (edge - edge * slope) - slope**2
    top = slope * (edge - left)
    return round(left), round(top), round(edge - left), round(edge - top)


def make_copy(tile: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Make an augmented copy as the authors did: rotate by up to 25 degrees, then flip each axis at random."""
    angle = int(rng.integers(0, 26))
    turned = tile.rotate(angle * int(rng.choice([-1, 1])), expand=True, resample=Image.Resampling.BICUBIC)
    image = turned.crop(crop_rectangle(turned.width, angle)).resize(tile.size, Image.Resampling.BICUBIC)
    for flip in (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM):
        image = image.transpose(flip) if rng.integers(2) else image
    return image
