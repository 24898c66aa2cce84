"""Near-duplicates and mirrored images, recognised by the correlation of small versions of the images.

Each image becomes a thumbnail of `EDGE` cells along each axis (`VOLUME_EDGE` for volumes) in grey, with mean 0 and norm
1. Two images are near-duplicates if two correlations are high enough: that of the thumbnails (`MIN_CORRELATION`), and
that of the thumbnails' differences from the average thumbnail (`MIN_DETAIL_CORRELATION`), because images of one body
part resemble each other. Changes of brightness, contrast, size or compression change these correlations little.

The search is exact: all pairs are compared, first on `AXES` principal axes, which give an upper bound of the second
correlation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

EDGE, VOLUME_EDGE = 32, 16
"""Cells of a thumbnail along each axis, for images and for volumes."""

MIN_CORRELATION, MIN_DETAIL_CORRELATION = 0.97, 0.9
"""Smallest correlation of two near-duplicates: of thumbnails, and of their differences from the average thumbnail."""

MIRROR_GAIN = 0.03
"""Smallest gain in correlation by a flip of mirrored images. Round objects are similar to all flips of each other."""

AXES = 64
"""Number of principal axes of the first comparison."""

MAX_PAIRS = 5000
"""Number of pairs at which the search stops. A data set with more pairs repeats its images on purpose."""

AXIS_NAMES = {3: ("up and down", "left and right"), 4: ("left and right", "front and back", "up and down")}
"""Directions of the axes of images, and of volumes as `medfl prep folder` stores them, by the number of dimensions of
an array of thumbnails."""


@dataclass(frozen=True)
class SimilarPair:
    """Two images that are near-duplicates.

    Attributes:
        first: Position of one image.
        second: Position of the other image, larger than `first`.
        correlation: Correlation of the thumbnails, in [-1, 1].
        mirrored: Directions in which the second image is mirrored, such as ``left and right``; empty if it is not.
    """

    first: int
    second: int
    correlation: float
    mirrored: str = ""


def make_thumbnails(pixels: np.ndarray) -> np.ndarray:
    """Return grey thumbnails, (B, *edges), float32, averaged to `EDGE` or `VOLUME_EDGE` cells along each axis.

    Args:
        pixels: Images, (B, *spatial, C), float32. Values that are not finite count as 0.
    """
    grey = torch.from_numpy(np.nan_to_num(pixels, nan=0.0, posinf=0.0, neginf=0.0).mean(axis=-1)).unsqueeze(1)
    if grey.dim() == 4:
        return torch.nn.functional.adaptive_avg_pool2d(grey, EDGE)[:, 0].numpy()
    return torch.nn.functional.adaptive_avg_pool3d(grey, VOLUME_EDGE)[:, 0].numpy()


def find_similar(thumbnails: np.ndarray) -> list[SimilarPair]:
    """Return the pairs of near-duplicates, the most similar first; about `MAX_PAIRS` if there are more.

    Args:
        thumbnails: Thumbnails of the images, (N, H, W) or (N, D, H, W). A constant thumbnail matches nothing.
    """
    spatial = tuple(range(1, thumbnails.ndim))
    plain = standardise(thumbnails)
    if len(plain) < 2:
        return []
    average = plain.mean(axis=0)
    details = _normalise(plain - average)
    axes = _principal_axes(details)
    pairs: dict[tuple[int, int], SimilarPair] = {}
    for flips in [(), *(some for size in range(1, len(spatial) + 1) for some in combinations(spatial, size))]:
        other = standardise(np.flip(thumbnails, flips)) if flips else plain
        other_details = _normalise(other - average) if flips else details
        directions = "; ".join(AXIS_NAMES[thumbnails.ndim][axis - 1] for axis in flips)
        for first, second in _candidates(details, other_details, axes):
            similar = np.einsum("ij,ij->i", details[first], other_details[second]) >= MIN_DETAIL_CORRELATION
            first, second = first[similar], second[similar]
            correlations = np.einsum("ij,ij->i", plain[first], other[second])
            gains = correlations - np.einsum("ij,ij->i", plain[first], plain[second])
            enough = (correlations >= MIN_CORRELATION) & (gains >= (MIRROR_GAIN if flips else 0))
            for place in np.flatnonzero(enough).tolist():
                pair = SimilarPair(int(first[place]), int(second[place]), float(correlations[place]), directions)
                known = pairs.get((pair.first, pair.second))
                if known is None or known.correlation < pair.correlation:
                    pairs[pair.first, pair.second] = pair
            if len(pairs) >= MAX_PAIRS:
                break
    return sorted(pairs.values(), key=lambda pair: (-pair.correlation, pair.first, pair.second))[:MAX_PAIRS]


def standardise(thumbnails: np.ndarray) -> np.ndarray:
    """Return thumbnails as rows (N, cells), float32, with mean 0 and norm 1; a constant one becomes 0."""
    rows = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    return _normalise(rows - rows.mean(axis=1, keepdims=True))


def _normalise(rows: np.ndarray) -> np.ndarray:
    """Return rows of norm 1; a row whose norm is below 0.0001 becomes 0."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(norms > 1e-4, rows / np.maximum(norms, 1e-4), np.float32(0))


def _principal_axes(rows: np.ndarray) -> np.ndarray:
    """Return orthonormal principal axes, (cells, at most `AXES`), of at most 2000 regularly chosen rows."""
    some = rows[:: -(-len(rows) // 2000)]
    return np.ascontiguousarray(np.linalg.svd(some, full_matrices=False)[2][:AXES].T)


def _candidates(rows: np.ndarray, others: np.ndarray, axes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield positions (first < second) of pairs whose correlation may reach `MIN_DETAIL_CORRELATION`, block by block.

    The correlation of two rows is the product on the axes plus that of the residuals, at most the product of their
    norms. A pair (a, flipped b) with a > b needs no comparison: it is the pair (b, flipped a).
    """
    ours, theirs = rows @ axes, others @ axes
    our_rest = np.sqrt(np.maximum(0, (rows**2).sum(1) - (ours**2).sum(1)))
    their_rest = np.sqrt(np.maximum(0, (others**2).sum(1) - (theirs**2).sum(1)))
    block = max(1, (1 << 24) // len(rows))
    for start in range(0, len(rows), block):
        bound = ours[start : start + block] @ theirs.T + np.outer(our_rest[start : start + block], their_rest)
        first, second = np.nonzero(bound >= MIN_DETAIL_CORRELATION - 1e-4)
        first += start
        yield first[first < second], second[first < second]
