"""IID partition: all sites draw alike."""

from __future__ import annotations

import numpy as np

from medfl.data.partition.iterative import iterative
from medfl.data.partition.shares import check_labels


def iid(
    labels: np.ndarray,
    sites: int,
    *,
    stratified: bool = True,
    sets: np.ndarray | None = None,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Shuffle, then deal to the sites in turn.

    Sizes differ by at most 1. Stratified, each class is dealt on its own, one class going on where the last one ended,
    so that each class's counts differ by at most 1 as well. Units with sets of labels are stratified iteratively
    (`medfl.data.partition.iterative`).

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites, 1 to n.
        stratified: Whether the classes are spread evenly too; otherwise they are spread by chance.
        sets: Which of several labels each unit has, shape (n, C), bool; None where `labels` are classes.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If there are more sites than units, or none.
    """
    labels = check_labels(labels, sites)
    if stratified and sets is not None:
        sizes = np.bincount(rng.permutation(sites)[np.arange(len(labels)) % sites], minlength=sites)
        parts = iterative(sets, sizes, rng)
        return [np.flatnonzero(parts == site) for site in range(sites)]
    order = rng.permutation(len(labels))
    if stratified:
        order = order[np.argsort(labels[order], kind="stable")]
    first = rng.permutation(sites)  # which sites get the odd images
    return [np.sort(order[start::sites]) for start in first]
