"""Which images of LC25000 are copies of one tile: a perceptual hash that knows what was done to the tiles.

The authors rotated each tile by up to 25 degrees and flipped it, with the package Augmentor. Its ``rotate`` cuts a
rectangle out of the turned tile and stretches it to the size of the tile; which rectangle depends on the angle alone
(`kept`). At 25 degrees it is 67 % of the tile's width and only 40 % of its height, so copies of a tile look unlike.
A disc in the middle, 39 % of the edge wide (`RADIUS`), is in all copies. The hash compares this disc:

1. For each angle from 0 to 25 degrees the stretching is undone and the grey values are read on rings around the
   middle. If the angle is the right one, two copies differ by a turn, and perhaps a reflection, of their rings.
2. The absolute values of each ring's Fourier coefficients do not change then. Fine patterns count more, as all tissue
   is alike in coarse ones. The correlation of these values, at the best pair of angles, says which pairs of images may
   be copies (at least `LOOSE`).
3. These are turned and reflected onto each other: they are copies if the rings correlate (at least `SAME`).

On pieces of a real micrograph with copies made by Augmentor's rule, saved as JPEG, the correlation of copies was 0.93
or more, and that of different pieces at most 0.69 (10,800 pairs).

Images that are linked by copies of copies are one group. What this does not find: copies that were made in another
way, tiles whose middle is blank (`PLAIN`), and different tiles of one slide or patient, of which the release says
nothing. Tiles whose middles look alike would be one group.

Source of the rectangle: ``RotateRange`` of Augmentor 0.2.12 (Bloice et al., Bioinformatics 35:4522, 2019).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from math import cos, radians, sin, tan
from typing import NamedTuple

import numpy as np

EDGE = 64
"""Height and width of what the hash is made of: the tile in grey, shrunk."""

ANGLES = 26
"""Angles that the tile may have been turned by: 0 to 25 degrees, to either side."""

RADIUS = 0.195
"""Of the disc, in edges of the tile. The rectangle at 25 degrees has room for 0.199."""

RINGS = 12
"""Rings of the disc, equally wide."""

HARMONICS = 12
"""The highest Fourier coefficient of a ring."""

LOOSE = 0.94
"""Correlation of absolute values from which a pair is looked at, in 0..1."""

SAME = 0.88
"""Correlation of rings from which a pair is a pair of copies, in 0..1."""

PLAIN = 2.0
"""Standard deviation of grey values, of 255, below which a disc is blank and like no other."""

_BLOCK = 48  # images that are compared with as many others at once: 6 MB of correlations
_SAMPLES = 48  # along a ring
_CIRCLES = 2  # averaged for a ring
_TURNS = 96  # that are tried; copies are at most 1.9 degrees from one of them


class Groups(NamedTuple):
    """Groups of copies.

    Attributes:
        numbers: The group of each image, from 0, shape (n,).
        plain: Whether an image's middle is blank, so that it is a group of its own, shape (n,), bool.
    """

    numbers: np.ndarray
    plain: np.ndarray


def kept(angle: float) -> tuple[float, float]:
    """What Augmentor's ``rotate`` keeps of a square.

    Args:
        angle: In degrees, 0 to 25.

    Returns:
        Width and height of the rectangle, in edges of the square; it has the middle of the square as its own.

    >>> [round(share, 2) for share in kept(0) + kept(25)]
    [1.0, 1.0, 0.67, 0.4]
    """
    around, slope = cos(radians(angle)) + sin(radians(angle)), tan(radians(angle))
    left = slope * around * (1 - slope)
    top = slope * (around - left)
    return around - 2 * left, around - 2 * top


def group_copies(thumbnails: np.ndarray) -> Groups:
    """Find the copies among images of one class; time grows with n^2, memory with n.

    Args:
        thumbnails: Grey values of each whole image, shape (n, `EDGE`, `EDGE`), uint8.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    coefficients = np.stack([spectra(image) for image in thumbnails])
    pairs = [(first, other) for first, other, score in _compared(coefficients) if score >= SAME]
    ones, others = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    links = coo_array((np.ones(len(pairs)), (ones, others)), shape=(len(coefficients), len(coefficients)))
    return Groups(connected_components(links, directed=False)[1], np.logical_not(coefficients.any(axis=(1, 2, 3))))


def spectra(thumbnail: np.ndarray) -> np.ndarray:
    """The Fourier coefficients of an image's rings, for each angle by which it may have been turned.

    Args:
        thumbnail: Shape (`EDGE`, `EDGE`).

    Returns:
        Shape (`ANGLES`, `RINGS`, 1 + `HARMONICS`), complex64. Rings count by their area, the coefficient of n periods
        n + 1 times. For each angle the sum of squared absolute values is 1, or 0 if the disc is blank: products of
        two images' coefficients add up to a correlation.
    """
    from scipy.ndimage import map_coordinates

    values = map_coordinates(np.asarray(thumbnail, dtype=np.float32), _places(), order=1, mode="nearest")
    rings = values.reshape(ANGLES, RINGS, _CIRCLES, _SAMPLES).mean(axis=2)
    area = (2 * np.arange(RINGS) + 1) / RINGS**2
    mean = (rings.mean(axis=2) * area).sum(axis=1)
    coefficients = np.fft.rfft(rings - mean[:, None, None], axis=-1)[..., : HARMONICS + 1] / _SAMPLES
    coefficients[..., 1:] *= 2**0.5  # for the conjugates, which are left out
    coefficients *= np.sqrt(area)[:, None]
    blank = _length(coefficients) < PLAIN
    coefficients *= 1 + np.arange(HARMONICS + 1)
    unit: np.ndarray = (coefficients / np.where(blank, np.inf, _length(coefficients))).astype(np.complex64)
    return unit


def correlation(first: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The correlation of discs at the best turn, with or without a reflection.

    Args:
        first: Coefficients of each pair's one disc, shape (p, `RINGS`, 1 + `HARMONICS`).
        other: Of the other.

    Returns:
        Shape (p,), in -1..1.
    """
    turns = np.exp(2j * np.pi / _TURNS * np.outer(np.arange(HARMONICS + 1), np.arange(_TURNS)))
    seen = [((first * disc).sum(axis=1) @ turns).real.max(axis=1) for disc in (other, other.conj())]
    best: np.ndarray = np.maximum(*seen)
    return best


def _length(coefficients: np.ndarray) -> np.ndarray:
    """Of the coefficients of each angle, shape (`ANGLES`, 1, 1)."""
    length: np.ndarray = np.sqrt((np.abs(coefficients) ** 2).sum(axis=(1, 2), keepdims=True))
    return length


def _compared(coefficients: np.ndarray) -> Iterator[tuple[int, int, float]]:
    """Pairs of images that may be copies, with the correlation of their discs."""
    values = np.abs(coefficients)
    values[..., 0] = coefficients[..., 0].real  # the mean of a ring has a sign
    flat = values.reshape(len(coefficients), ANGLES, -1)
    starts = range(0, len(coefficients), _BLOCK)
    for first in starts:
        for second in starts[first // _BLOCK :]:
            ones, others, angles = _candidates(flat[first : first + _BLOCK], flat[second : second + _BLOCK])
            ones, others = ones + first, others + second
            scores = correlation(coefficients[ones, angles // ANGLES], coefficients[others, angles % ANGLES])
            for image, other, score in zip(ones.tolist(), others.tolist(), scores.tolist(), strict=True):
                if image < other:
                    yield image, other, score


def _candidates(block: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of the images in both blocks, and the best pair of angles, of pairs that reach `LOOSE`."""
    width = block.shape[-1]
    scores = (block.reshape(-1, width) @ other.reshape(-1, width).T).reshape(len(block), ANGLES, -1)
    best = scores.max(axis=1).reshape(len(block), len(other), ANGLES).max(axis=2)
    ones, others = np.nonzero(best >= LOOSE)
    angles = scores.reshape(len(block), ANGLES, len(other), ANGLES)[ones, :, others]
    return ones, others, angles.reshape(len(ones), ANGLES * ANGLES).argmax(axis=1)


@functools.cache
def _places() -> np.ndarray:
    """Row and column in the thumbnail of each sample, shape (2, all)."""
    radii = (np.arange(RINGS * _CIRCLES) + 0.5) / (RINGS * _CIRCLES) * RADIUS
    around = 2 * np.pi / _SAMPLES * np.arange(_SAMPLES)
    across, down = (np.outer(radii, turn(around)).ravel() for turn in (np.cos, np.sin))
    shares = [kept(angle) for angle in range(ANGLES)]
    rows = [down / height for _, height in shares]
    columns = [across / width for width, _ in shares]
    return (np.array([np.concatenate(rows), np.concatenate(columns)]) + 0.5) * EDGE - 0.5
