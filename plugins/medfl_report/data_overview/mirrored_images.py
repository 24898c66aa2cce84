"""Images that are likely mirrored, recognised by the orientation of all other images.

Bodies are not symmetric, so in a data set of one body part a linear rule can tell an image from its mirror image. For
each axis, ridge regression learns this rule from the antisymmetric parts of the thumbnails: half of the difference
between a thumbnail and its mirror image. Each image is judged by the rule of all others (leave-one-out).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medfl_report.data_overview.near_duplicates import AXIS_NAMES, standardise

MIN_IMAGES = 50
"""Smallest number of images from which orientation is learned."""

MIN_AGREEMENT = 0.95
"""Smallest share of images that the rule of the others judges right. With a smaller share, the images have no common
orientation along the axis, and none is listed."""

MIRRORED_SCORE = -0.75
"""Largest score of a mirrored image, relative to the median score of all images."""

PENALTY = 0.01
"""Penalty of the ridge regression, relative to the sum of squares of the antisymmetric parts."""


@dataclass(frozen=True)
class MirroredImage:
    """An image that is likely mirrored.

    Attributes:
        place: Position of the image.
        directions: Directions in which it is mirrored, such as ``left and right``.
    """

    place: int
    directions: str


def find_mirrored(thumbnails: np.ndarray) -> list[MirroredImage]:
    """Return the images that are likely mirrored, in their order.

    Args:
        thumbnails: Thumbnails of the images, (N, H, W) or (N, D, H, W). A constant thumbnail is left out.
    """
    directions: dict[int, list[str]] = {}
    plain = standardise(thumbnails).reshape(thumbnails.shape)
    for axis, name in enumerate(AXIS_NAMES[thumbnails.ndim], start=1):
        halves = (plain - np.flip(plain, axis)).reshape(len(plain), -1) / 2
        present = np.flatnonzero(np.linalg.norm(halves, axis=1) > 0)
        if len(present) < MIN_IMAGES:
            continue
        scores = orientation_scores(halves[present].astype(np.float64))
        if (scores > 0).mean() < MIN_AGREEMENT:
            continue
        for place in present[scores <= MIRRORED_SCORE * np.median(scores)].tolist():
            directions.setdefault(place, []).append(name)
    return [MirroredImage(place, "; ".join(names)) for place, names in sorted(directions.items())]


def orientation_scores(parts: np.ndarray) -> np.ndarray:
    """Return the leave-one-out score of each image: near 1 if it is oriented like the others, near -1 if mirrored.

    The rule w minimises sum_i (1 - w.u_i)^2 + penalty |w|^2 over the antisymmetric parts u_i. Its prediction for an
    image without the image itself is (p_i - h_i) / (1 - h_i), with the prediction p_i of the whole rule and the
    leverage h_i.

    Args:
        parts: Antisymmetric parts u_i, (N, cells), float64.
    """
    penalty = PENALTY * (parts**2).sum()
    images, cells = parts.shape
    if cells < images:
        inverse = np.linalg.inv(parts.T @ parts + penalty * np.eye(cells))
        projected = parts @ inverse
        leverages, predictions = (projected * parts).sum(axis=1), projected @ parts.sum(axis=0)
    else:
        products = parts @ parts.T
        hat = np.linalg.solve(products + penalty * np.eye(images), products)
        leverages, predictions = np.diag(hat), hat.T.sum(axis=1)
    scores: np.ndarray = (predictions - leverages) / (1 - leverages)
    return scores
