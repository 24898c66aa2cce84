"""IID partition: every site draws from the same distribution.

A unit is one image, or a group of images that must stay together; see `medfl.data.partition`.
"""

from __future__ import annotations

import numpy as np

from medfl.data.partition.shares import check_labels, iterative


def iid(
    labels: np.ndarray,
    sites: int,
    *,
    stratified: bool = True,
    sets: np.ndarray | None = None,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Split the units at random so that all sites have the same class distribution.

    Use it as the homogeneous baseline for the schemes with skewed sites, or to simulate sites with similar patients.

    The scheme shuffles the units and assigns them to the sites in turn, so site sizes differ by at most 1. With
    `stratified`, it does so class by class. Each class starts at the site after the one where the class before it
    ended, so the counts of each class also differ by at most 1. Units with several labels are stratified iteratively
    (`medfl.data.partition.shares.iterative`).

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites, 1 to n.
        stratified: Whether each class is spread evenly over the sites. Otherwise classes are spread at random.
        sets: Labels of each unit if a unit may have several, shape (n, C), bool; None if `labels` are classes.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `sites` is below 1 or above the number of units.

    Source: standard baseline of McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", AISTATS 2017, here stratified by default; for several labels see `medfl.data.partition.shares.iterative`.
    """
    labels = check_labels(labels, sites)
    if stratified and sets is not None:
        sizes = np.bincount(rng.permutation(sites)[np.arange(len(labels)) % sites], minlength=sites)
        parts = iterative(sets, sizes, rng)
        return [np.flatnonzero(parts == site) for site in range(sites)]
    order = rng.permutation(len(labels))
    if stratified:
        order = order[np.argsort(labels[order], kind="stable")]
    first = rng.permutation(sites)  # which sites get one image more
    return [np.sort(order[start::sites]) for start in first]
