"""Label skew by Dirichlet draws, one for each class; also with a rule that keeps sites from growing too large.

Sources: Yurochkin et al., Bayesian nonparametric federated learning, ICML 2019; Hsu, Qi and Brown, arXiv 1909.06335
(2019); the rule for full sites and the smallest size as in Li et al., NIID-Bench, ICDE 2022.
"""

from __future__ import annotations

import numpy as np

from medfl.data.partition.shares import class_shares, cut, split_by_draws


def dirichlet_class(
    labels: np.ndarray, sites: int, *, alpha: float = 0.5, min_size: int = 0, rng: np.random.Generator
) -> list[np.ndarray]:
    """Split each class by its own Dirichlet draw.

    For each class draw p ~ Dir(alpha, ..., alpha) over the K sites and cut the shuffled class at the floors of the
    cumulative shares, so that a share has variance (1/K)(1 - 1/K) / (K alpha + 1). With `min_size`, all is drawn again
    until each site has as many units; that makes the shares less unlike than this formula says.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites K, >= 1.
        alpha: Concentration, > 0. A large one makes all sites alike; `iid` is the limit.
        min_size: Units each site has at least, >= 0; 0 leaves the draws as they are, and a site may stay empty.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `alpha` is not positive, or `min_size` can't be reached.
    """
    return split_by_draws(labels, sites, alpha, min_size, _draw, rng)


def _draw(sizes: np.ndarray, sites: int, alpha: float, rng: np.random.Generator) -> np.ndarray | None:
    """Units of each class (rows) at each site (columns), or None if a draw underflows."""
    rows = []
    for size in sizes:
        row = cut(class_shares(sites, alpha, rng), size)
        if row is None:
            return None
        rows.append(row)
    return np.array(rows)


def dirichlet_class_balanced(
    labels: np.ndarray, sites: int, *, alpha: float = 0.5, min_size: int = 10, rng: np.random.Generator
) -> list[np.ndarray]:
    """Split each class by its own Dirichlet draw; sites that are full get no more.

    For each class in turn: draw the shares; set them to 0 at sites that hold n / K units or more; normalise; cut the
    shuffled class at the floors of the cumulative shares. All is drawn again until each site has `min_size` units.
    This makes the shares of the final partition differ from plain Dirichlet draws.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites K, >= 1.
        alpha: Concentration, > 0. A large one makes all sites alike; `iid` is the limit.
        min_size: Units each site has at least, >= 0.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `alpha` is not positive, or `min_size` can't be reached.
    """
    return split_by_draws(labels, sites, alpha, min_size, _draw_balanced, rng)


def _draw_balanced(sizes: np.ndarray, sites: int, alpha: float, rng: np.random.Generator) -> np.ndarray | None:
    """Units of each class (rows) at each site (columns), or None if the shares of all open sites are 0."""
    counts = np.zeros((len(sizes), sites), dtype=np.int64)
    for number, size in enumerate(sizes):
        is_open = counts.sum(axis=0) < sizes.sum() / sites
        row = cut(class_shares(sites, alpha, rng) * is_open, size)
        if row is None:
            return None
        counts[number] = row
    return counts
