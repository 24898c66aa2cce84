"""Perceptual hash that finds the images of LC25000 that are augmented copies of the same tile.

The authors rotated each tile by up to 25 degrees and flipped it with the package Augmentor. Augmentor's ``rotate``
crops a rectangle from the rotated tile and stretches it to the size of the tile. The rectangle depends only on the
angle (`kept_rectangle`). At 25 degrees it keeps 67 % of the tile's width but only 40 % of its height, so two copies of
a tile look different. All copies contain the same disc in the middle, 39 % of the edge wide (radius `DISC_RADIUS`). The
hash compares these discs:

1. For each angle from 0 to 25 degrees, undo the stretching and sample the grey values on rings around the centre. At
   the right angle, the rings of two copies differ only by a rotation and possibly a reflection.
2. Compute the absolute Fourier coefficients of each ring, which a rotation or reflection does not change. Weight high
   frequencies more, because all tissue has similar low frequencies. Two images are a candidate pair if these values
   correlate by at least `CANDIDATE_CORRELATION` at the best pair of angles.
3. Rotate and reflect the discs of each candidate pair onto each other. The images are copies if their rings correlate
   by at least `COPY_CORRELATION`.

On patches of a real micrograph that were copied by Augmentor's rule and saved as JPEG, copies correlated by 0.93 or
more, and different patches by at most 0.69 (10,800 pairs).

Images that are connected by a chain of copies form one group. The hash does not find copies that were made in another
way, copies of tiles with a blank centre (`BLANK_STD`), or different tiles of one slide or patient; the release does not
state slides or patients. Different tiles with similar centres would form one group.

Source of the rectangle: ``RotateRange`` of Augmentor 0.2.12 (Bloice et al., Bioinformatics 35:4522, 2019).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from math import cos, radians, sin, tan
from typing import NamedTuple

import numpy as np

THUMBNAIL_EDGE = 64
"""Height and width in pixels of the grey thumbnail from which the hash is computed."""

ANGLES = 26
"""Number of rotation angles that are tried: 0 to 25 degrees in steps of 1, clockwise or counter-clockwise."""

DISC_RADIUS = 0.195
"""Radius of the compared disc, as a share of the tile's edge. The rectangle at 25 degrees contains discs of up to
0.199."""

RINGS = 12
"""Number of concentric rings of equal width into which the disc is divided."""

HARMONICS = 12
"""Highest order of the Fourier coefficients of a ring."""

CANDIDATE_CORRELATION = 0.94
"""Minimum correlation of absolute Fourier coefficients for a candidate pair, in 0..1."""

COPY_CORRELATION = 0.88
"""Minimum correlation of aligned rings for a pair of copies, in 0..1."""

BLANK_STD = 2.0
"""Standard deviation of the grey values (0 to 255) below which a disc is blank and matches no other disc."""

_BLOCK_SIZE = 48  # images in a block; two blocks are compared at once, with 6 MB of correlations
_SAMPLES_PER_CIRCLE = 48  # sampled points of a circle
_CIRCLES_PER_RING = 2  # circles that are averaged for a ring
_ROTATIONS = 96  # rotations that are tried; copies differ from one of them by at most 1.9 degrees


class CopyGroups(NamedTuple):
    """Assignment of images to groups of copies.

    Attributes:
        numbers: Group number of each image, from 0, shape (n,), integers.
        blank: Whether the centre of each image is blank, shape (n,), bool. A blank image is a group of its own.
    """

    numbers: np.ndarray
    blank: np.ndarray


def kept_rectangle(angle: float) -> tuple[float, float]:
    """Compute the rectangle of a square image that Augmentor's ``rotate`` keeps.

    Args:
        angle: Rotation in degrees, 0 to 25.

    Returns:
        Width and height of the rectangle, as shares of the square's edge. Its centre is the centre of the square.

    >>> [round(share, 2) for share in kept_rectangle(0) + kept_rectangle(25)]
    [1.0, 1.0, 0.67, 0.4]
    """
    around, slope = cos(radians(angle)) + sin(radians(angle)), tan(radians(angle))
    left = slope * around * (1 - slope)
    top = slope * (around - left)
    return around - 2 * left, around - 2 * top


def group_copies(thumbnails: np.ndarray) -> CopyGroups:
    """Group the images of one class into copies of the same tile; time grows with n^2, memory with n.

    Args:
        thumbnails: Grey values of the n whole images at reduced size, shape (n, `THUMBNAIL_EDGE`, `THUMBNAIL_EDGE`),
            uint8.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    coefficients = np.stack([ring_spectra(image) for image in thumbnails])
    pairs = [(first, other) for first, other, score in _candidate_pairs(coefficients) if score >= COPY_CORRELATION]
    ones, others = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    links = coo_array((np.ones(len(pairs)), (ones, others)), shape=(len(coefficients), len(coefficients)))
    return CopyGroups(connected_components(links, directed=False)[1], np.logical_not(coefficients.any(axis=(1, 2, 3))))


def ring_spectra(thumbnail: np.ndarray) -> np.ndarray:
    """Compute the Fourier coefficients of an image's rings for each rotation angle.

    Args:
        thumbnail: Grey values, shape (`THUMBNAIL_EDGE`, `THUMBNAIL_EDGE`).

    Returns:
        Fourier coefficients, shape (`ANGLES`, `RINGS`, 1 + `HARMONICS`), complex64. Rings are weighted by area, the
        coefficient of order n by n + 1. For each angle the squared absolute values sum to 1, or to 0 if the disc is
        blank. The products of two images' coefficients therefore sum to a correlation.
    """
    from scipy.ndimage import map_coordinates

    values = map_coordinates(np.asarray(thumbnail, dtype=np.float32), _sample_positions(), order=1, mode="nearest")
    rings = values.reshape(ANGLES, RINGS, _CIRCLES_PER_RING, _SAMPLES_PER_CIRCLE).mean(axis=2)
    area = (2 * np.arange(RINGS) + 1) / RINGS**2
    mean = (rings.mean(axis=2) * area).sum(axis=1)
    coefficients = np.fft.rfft(rings - mean[:, None, None], axis=-1)[..., : HARMONICS + 1] / _SAMPLES_PER_CIRCLE
    coefficients[..., 1:] *= 2**0.5  # accounts for the complex conjugates, which rfft omits
    coefficients *= np.sqrt(area)[:, None]
    blank = _norms(coefficients) < BLANK_STD
    coefficients *= 1 + np.arange(HARMONICS + 1)
    unit: np.ndarray = (coefficients / np.where(blank, np.inf, _norms(coefficients))).astype(np.complex64)
    return unit


def disc_correlation(first: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Compute the correlation of pairs of discs at the best rotation, with or without a reflection.

    Args:
        first: Coefficients of the first disc of each of p pairs, shape (p, `RINGS`, 1 + `HARMONICS`), from
            `ring_spectra` at one angle.
        other: Coefficients of the second disc of each pair, same shape.

    Returns:
        Correlations, shape (p,), in -1..1.
    """
    turns = np.exp(2j * np.pi / _ROTATIONS * np.outer(np.arange(HARMONICS + 1), np.arange(_ROTATIONS)))
    seen = [((first * disc).sum(axis=1) @ turns).real.max(axis=1) for disc in (other, other.conj())]
    best: np.ndarray = np.maximum(*seen)
    return best


def _norms(coefficients: np.ndarray) -> np.ndarray:
    """Compute the Euclidean norm of the coefficients of each angle, shape (`ANGLES`, 1, 1)."""
    length: np.ndarray = np.sqrt((np.abs(coefficients) ** 2).sum(axis=(1, 2), keepdims=True))
    return length


def _candidate_pairs(coefficients: np.ndarray) -> Iterator[tuple[int, int, float]]:
    """Yield the candidate pairs of images as (first image, second image, correlation of their discs)."""
    values = np.abs(coefficients)
    values[..., 0] = coefficients[..., 0].real  # keep the sign of the ring's mean
    flat = values.reshape(len(coefficients), ANGLES, -1)
    starts = range(0, len(coefficients), _BLOCK_SIZE)
    for first in starts:
        for second in starts[first // _BLOCK_SIZE :]:
            ones, others, angles = _pairs_above_threshold(
                flat[first : first + _BLOCK_SIZE], flat[second : second + _BLOCK_SIZE]
            )
            ones, others = ones + first, others + second
            scores = disc_correlation(coefficients[ones, angles // ANGLES], coefficients[others, angles % ANGLES])
            for image, other, score in zip(ones.tolist(), others.tolist(), scores.tolist(), strict=True):
                if image < other:
                    yield image, other, score


def _pairs_above_threshold(block: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the pairs of images from two blocks that reach `CANDIDATE_CORRELATION`.

    Returns:
        Indices of the first images in their block, indices of the second images in theirs, and for each pair its best
        pair of angles as the number ``ANGLES * first + second``.
    """
    width = block.shape[-1]
    scores = (block.reshape(-1, width) @ other.reshape(-1, width).T).reshape(len(block), ANGLES, -1)
    best = scores.max(axis=1).reshape(len(block), len(other), ANGLES).max(axis=2)
    ones, others = np.nonzero(best >= CANDIDATE_CORRELATION)
    angles = scores.reshape(len(block), ANGLES, len(other), ANGLES)[ones, :, others]
    return ones, others, angles.reshape(len(ones), ANGLES * ANGLES).argmax(axis=1)


@functools.cache
def _sample_positions() -> np.ndarray:
    """Compute the thumbnail row and column of each sample, shape (2, all samples)."""
    radii = (np.arange(RINGS * _CIRCLES_PER_RING) + 0.5) / (RINGS * _CIRCLES_PER_RING) * DISC_RADIUS
    around = 2 * np.pi / _SAMPLES_PER_CIRCLE * np.arange(_SAMPLES_PER_CIRCLE)
    across, down = (np.outer(radii, turn(around)).ravel() for turn in (np.cos, np.sin))
    shares = [kept_rectangle(angle) for angle in range(ANGLES)]
    rows = [down / height for _, height in shares]
    columns = [across / width for width, _ in shares]
    return (np.array([np.concatenate(rows), np.concatenate(columns)]) + 0.5) * THUMBNAIL_EDGE - 0.5
