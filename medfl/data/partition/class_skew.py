"""Partition schemes with label skew: sites that differ in their class distributions.

A unit is one image, or a group of images that must stay together; see `medfl.data.partition`.
"""

from __future__ import annotations

import numpy as np

from medfl.data.partition.iid import iid
from medfl.data.partition.plan import numbered_site_names
from medfl.data.partition.shares import check_labels, check_share, class_shares, cut, split_by_draws, split_evenly
from medfl.errors import SettingsError


def dirichlet_class(
    labels: np.ndarray, sites: int, *, alpha: float = 0.5, min_size: int = 0, rng: np.random.Generator
) -> list[np.ndarray]:
    """Split each class among the sites by shares drawn from a Dirichlet distribution.

    Use it for label skew of adjustable strength, with sites that also differ in size. It is widely used in the
    literature, with values of `alpha` from 0.1 (strong skew) to 1 (weak skew).

    For each class, the scheme draws p ~ Dir(alpha, ..., alpha) over the K sites and cuts the shuffled class at the
    floors of the cumulative shares. A share has mean 1/K and variance (1/K)(1 - 1/K) / (K alpha + 1). With `min_size`,
    all classes are drawn again until each site has enough units; the shares then vary less than this formula says.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites K, >= 1.
        alpha: Concentration, > 0. A large value makes all sites alike; the limit is `iid`.
        min_size: Minimum number of units of a site, >= 0. With 0 the first draw is used, and a site may be empty.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `alpha` is not positive, or no draw reaches `min_size`.

    Source: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, and Hsu, Qi and
    Brown, arXiv 1909.06335 (2019); `min_size` from Li et al., "NIID-Bench", ICDE 2022.
    """
    return split_by_draws(labels, sites, alpha, min_size, _draw, rng)


def _draw(sizes: np.ndarray, sites: int, alpha: float, rng: np.random.Generator) -> np.ndarray | None:
    """Draw the number of units of each class (rows) at each site (columns).

    Returns:
        Counts (C, K), or None if the shares of a class underflow.
    """
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
    """Split each class by Dirichlet shares, but give no more units to sites that are already full.

    Use it for label skew with sites of similar size, and to reproduce results obtained with NIID-Bench. The shares of
    the final partition differ from plain Dirichlet draws.

    For each class in turn, the scheme draws the shares and sets them to 0 for sites that already have n / K units or
    more, with n units and K sites in all. It normalises the shares, and cuts the shuffled class at the floors of the
    cumulative shares. All classes are drawn again until each site has `min_size` units.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites K, >= 1.
        alpha: Concentration, > 0. A large value makes all sites alike; the limit is `iid`.
        min_size: Minimum number of units of a site, >= 0.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `alpha` is not positive, or no draw reaches `min_size`.

    Source: Li et al., "NIID-Bench", ICDE 2022: the rule for full sites and the minimum size.
    """
    return split_by_draws(labels, sites, alpha, min_size, _draw_balanced, rng)


def _draw_balanced(sizes: np.ndarray, sites: int, alpha: float, rng: np.random.Generator) -> np.ndarray | None:
    """Draw the number of units of each class (rows) at each site (columns).

    Returns:
        Counts (C, K), or None if the shares of all sites that are not full are 0.
    """
    counts = np.zeros((len(sizes), sites), dtype=np.int64)
    for number, size in enumerate(sizes):
        is_open = counts.sum(axis=0) < sizes.sum() / sites
        row = cut(class_shares(sites, alpha, rng) * is_open, size)
        if row is None:
            return None
        counts[number] = row
    return counts


def label_k(labels: np.ndarray, sites: int, *, k: int = 2, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each site k classes and split each class evenly among the sites that have it.

    Use it for strong label skew with a fixed number of classes per site. Sites may differ in size.

    With C classes, site i (from 0) gets class i mod C and k - 1 others drawn without replacement. With fewer sites than
    classes, some classes may have no site; their units stay unassigned.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites, >= 1.
        k: Number of classes of each site, 1 to C. With k = C all sites are alike, as with `iid`.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; no position is at two sites.

    Raises:
        SettingsError: If `k` is not in 1..C, or `sites` is below 1 or above the number of units.

    Source: Li et al., "NIID-Bench", ICDE 2022 (``noniid-#label``); used in the same way by Yang et al., "FedFed",
    NeurIPS 2023.
    """
    labels = check_labels(labels, sites)
    classes = np.unique(labels)
    if not 1 <= k <= len(classes):
        raise SettingsError(
            "setting_out_of_range",
            f"expected k in 1..{len(classes)}, the number of classes, got {k}",
            setting="k",
            minimum=1,
            maximum=len(classes),
            found=k,
        )
    owns = np.zeros((len(classes), sites), dtype=bool)
    for site in range(sites):
        first = site % len(classes)
        others = np.delete(np.arange(len(classes)), first)
        owns[[first, *rng.choice(others, k - 1, replace=False)], site] = True
    parts: list[list[np.ndarray]] = [[] for _ in range(sites)]
    for label, owners in zip(classes, owns, strict=True):
        split_evenly(rng.permutation(np.flatnonzero(labels == label)), np.flatnonzero(owners), parts, rng)
    return [np.sort(np.concatenate(pieces)) for pieces in parts]


def subset(labels: np.ndarray, sites: int, *, share: float = 0.95, rng: np.random.Generator) -> list[np.ndarray]:
    """Give most of each class to its main sites and split the rest evenly among all other sites.

    Use it for label skew in which every site has a dominant class and a few images of all others.

    With K sites and C classes, each class has K / C main sites: site i (from 0) is a main site of class i mod C. The
    main sites together get the share `share` of the class, rounded to the nearest unit and split evenly. All other
    sites split the rest evenly.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites K, a multiple of the number of classes C.
        share: Share of a class that its main sites get together, in [0, 1]. With 1 each site has one class; with 1 / C
            all sites are alike, as with `iid`.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `share` is outside [0, 1], there are fewer than two classes, or K is no multiple of C.

    Source: Yang et al., "FedFed", NeurIPS 2023 (``long-tail`` in its code).
    """
    labels = check_labels(labels, sites)
    classes = np.unique(labels)
    check_share(share)
    if len(classes) < 2:
        raise SettingsError(
            "too_few_classes", f"expected at least 2 classes, got {len(classes)}", minimum=2, found=len(classes)
        )
    if sites % len(classes):
        raise SettingsError(
            "setting_out_of_range",
            f"expected a number of sites that is a multiple of the {len(classes)} classes, got {sites}",
            setting="sites",
            multiple_of=len(classes),
            found=sites,
        )
    parts: list[list[np.ndarray]] = [[] for _ in range(sites)]
    for number, label in enumerate(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        main = np.arange(sites) % len(classes) == number
        main_count = int(np.floor(share * len(members) + 0.5))
        split_evenly(members[:main_count], np.flatnonzero(main), parts, rng)
        split_evenly(members[main_count:], np.flatnonzero(~main), parts, rng)
    return [np.sort(np.concatenate(pieces)) for pieces in parts]


def limited_classes(
    labels: np.ndarray, sites: int, *, classes: list[int], at: list[str], share: float = 0.1, rng: np.random.Generator
) -> list[np.ndarray]:
    """Split as `iid` does, then move most units of some classes away from some sites.

    Use it to simulate sites that rarely or never see certain classes while all other sites are alike.

    Each site in `at` keeps the share `share` of its units of each class in `classes`, rounded to the nearest unit. The
    other units are split evenly among the sites that are not in `at`. If all sites are in `at`, these units stay
    unassigned.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites, 1 to n.
        classes: Label numbers of the limited classes.
        at: Names of the sites where the classes are limited: ``site-01`` is the first site.
        share: Share of a limited class that such a site keeps, in [0, 1]. With 1 all sites are alike, as with `iid`;
            with 0 the site lacks the classes.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; no position is at two sites.

    Raises:
        SettingsError: If `classes` or `at` is empty or contains an unknown entry, or `share` is outside [0, 1].

    Source: Gao et al., "FedSDC", MICCAI 2025, figure 1.
    """
    labels, names = np.asarray(labels).reshape(-1), numbered_site_names(sites)
    _check_choices("classes", classes, np.unique(labels).tolist())
    _check_choices("at", at, names)
    check_share(share)
    parts = iid(labels, sites, rng=rng)
    others = np.array([site for site, name in enumerate(names) if name not in at], dtype=np.int64)
    gains: list[list[np.ndarray]] = [[part[:0]] for part in parts]
    for label in sorted(set(classes)):
        lost = [part[:0] for part in parts]
        for site in (names.index(name) for name in sorted(set(at))):
            members = rng.permutation(parts[site][labels[parts[site]] == label])
            lost[site] = members[int(np.floor(share * len(members) + 0.5)) :]
            parts[site] = np.setdiff1d(parts[site], lost[site])
        split_evenly(rng.permutation(np.concatenate(lost)), others, gains, rng)
    return [np.sort(np.concatenate([part, *more])) for part, more in zip(parts, gains, strict=True)]


def _check_choices(option: str, values: list[int] | list[str], known: list[int] | list[str]) -> None:
    """Raise if an option is empty or contains a value that is not in `known`."""
    unknown = [value for value in values if value not in known]
    if unknown or not values:
        raise SettingsError(
            "unknown_choice",
            f"expected {option} out of {known}, at least one, got {values}",
            what=option,
            choice=values,
            expected=known,
        )
