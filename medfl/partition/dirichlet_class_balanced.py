"""Label skew by Dirichlet draws, one for each class, with a rule that keeps sites from growing too large.

Sources: Hsu, Qi and Brown, arXiv 1909.06335 (2019); the rule for full sites and the smallest size as in Li et al.,
NIID-Bench, ICDE 2022.
"""

from __future__ import annotations

import numpy as np

from medfl.errors import SettingsError
from medfl.partition.checks import check_labels

MAX_TRIES = 5000
"""Draws before giving up on the smallest size."""


def class_shares(sites: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """The share of one class that each site gets, drawn from Dir(alpha, ..., alpha).

    A share has mean 1/K and variance (1/K)(1 - 1/K) / (K alpha + 1) for K sites.

    Args:
        sites: Number of sites K, >= 1.
        alpha: Concentration, > 0; small means that few sites hold most of a class.
        rng: Source of randomness.

    Returns:
        Shares of shape (K,), of sum 1.
    """
    return rng.dirichlet(np.full(sites, alpha))


def dirichlet_class_balanced(
    labels: np.ndarray, sites: int, *, alpha: float = 0.5, min_size: int = 10, rng: np.random.Generator
) -> list[np.ndarray]:
    """Split each class by its own Dirichlet draw; sites that are full get no more.

    For each class in turn: draw the shares; set them to 0 at sites that hold n / K images or more; normalise; cut the
    shuffled class at the floors of the cumulative shares. All is drawn again until each site has `min_size` images.
    This makes the shares of the final partition differ from plain Dirichlet draws.

    Args:
        labels: Label of each image, shape (n,).
        sites: Number of sites K, >= 1.
        alpha: Concentration, > 0. A large one makes all sites alike; `iid` is the limit.
        min_size: Images each site has at least, >= 0.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `alpha` is not positive, or `min_size` can't be reached.
    """
    if not (np.isfinite(alpha) and alpha > 0):
        raise SettingsError(f"expected alpha > 0, got {alpha}")
    if min_size < 0:
        raise SettingsError(f"expected min_size >= 0, got {min_size}")
    labels = check_labels(labels, sites, min_size)
    _, sizes = np.unique(labels, return_counts=True)
    for _ in range(MAX_TRIES):
        counts = _draw_counts(sizes, sites, alpha, rng)
        if counts is not None and counts.sum(axis=0).min(initial=len(labels)) >= min_size:
            return _deal(labels, counts, rng)
    raise SettingsError(
        f"no draw of {MAX_TRIES} gave each of {sites} sites at least {min_size} of {len(labels)} images at alpha "
        f"{alpha}. Ask for fewer sites, a smaller min_size or a larger alpha."
    )


def _draw_counts(sizes: np.ndarray, sites: int, alpha: float, rng: np.random.Generator) -> np.ndarray | None:
    """Images of each class (rows) at each site (columns), or None if the shares of all open sites are 0."""
    counts = np.zeros((len(sizes), sites), dtype=np.int64)
    for number, size in enumerate(sizes):
        shares = class_shares(sites, alpha, rng) * (counts.sum(axis=0) < sizes.sum() / sites)
        if not shares.sum() > 0:  # also when tiny alphas underflow
            return None
        ends = np.cumsum(shares / shares.sum())[:-1] * size
        cuts = np.floor(ends + 1e-9).astype(np.int64)  # a sum that misses 1 by a bit gives a full site nothing
        counts[number] = np.diff(np.concatenate([[0], np.minimum(cuts, size), [size]]))
    return counts


def _deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle each class and cut it into the given counts."""
    parts: list[list[np.ndarray]] = [[] for _ in range(counts.shape[1])]
    for label, row in zip(np.unique(labels), counts, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        for site, piece in enumerate(np.split(members, np.cumsum(row)[:-1])):
            parts[site].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in parts]
