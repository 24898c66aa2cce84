"""Label skew: sites whose shares of the classes differ.

Sources: `dirichlet_class` from Yurochkin et al., Bayesian nonparametric federated learning, ICML 2019, and Hsu, Qi and
Brown, arXiv 1909.06335 (2019), its rule for full sites and its smallest size from Li et al., NIID-Bench, ICDE 2022;
`label_k` from NIID-Bench (``noniid-#label``), used so in FedFed; `subset` from Yang et al., FedFed, NeurIPS 2023
(``long-tail`` in its code); `limited_classes` from figure 1 of Gao et al., FedSDC, MICCAI 2025.
"""

from __future__ import annotations

import numpy as np

from medfl.data.partition.iid import iid
from medfl.data.partition.plan import numbered
from medfl.data.partition.shares import check_labels, check_share, class_shares, cut, deal_evenly, split_by_draws
from medfl.errors import SettingsError


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


def label_k(labels: np.ndarray, sites: int, *, k: int = 2, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each site k classes and split each class evenly among the sites that own it.

    With C classes, site i (from 0) owns class i mod C and k - 1 others drawn without replacement. With fewer sites than
    classes some classes may have no owner; their units stay unassigned. Sites may differ in size.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites, >= 1.
        k: Classes of each site, 1 to C. At k = C all sites are alike, as with `iid`.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; no position is at two sites.

    Raises:
        SettingsError: If `k` is not in 1..C, or there is no site.
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
        deal_evenly(rng.permutation(np.flatnonzero(labels == label)), np.flatnonzero(owners), parts, rng)
    return [np.sort(np.concatenate(pieces)) for pieces in parts]


def subset(labels: np.ndarray, sites: int, *, share: float = 0.95, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each class mostly to its main sites, and the rest to all others.

    With K sites and C classes, K / C sites are main sites of each class: site i (from 0) of class i mod C. They get the
    share `share` of the class together, rounded to the nearest and split evenly; all other sites get the rest, split
    evenly.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites K, a multiple of the number of classes C.
        share: What the main sites of a class get of it, in [0, 1]. At 1 each site has one class; at 1 / C all sites
            are alike, as with `iid`.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `share` is outside [0, 1], there are fewer than two classes, or K is no multiple of C.
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
        kept = int(np.floor(share * len(members) + 0.5))
        deal_evenly(members[:kept], np.flatnonzero(main), parts, rng)
        deal_evenly(members[kept:], np.flatnonzero(~main), parts, rng)
    return [np.sort(np.concatenate(pieces)) for pieces in parts]


def limited_classes(
    labels: np.ndarray, sites: int, *, classes: list[int], at: list[str], share: float = 0.1, rng: np.random.Generator
) -> list[np.ndarray]:
    """Deal as `iid` does, then take most of some classes away from some sites.

    Each site in `at` keeps the share `share` of what it has of each class in `classes`, rounded to the nearest. The
    rest goes evenly to the sites that are not in `at`; where all are, it stays unassigned.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites, 1 to n.
        classes: The limited classes, by their numbers in the data list.
        at: Names of the sites where they are limited, as this partition names them: ``site-01`` is the first.
        share: What such a site keeps, in [0, 1]. At 1 all sites are alike, as with `iid`; at 0 it lacks the classes.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; no position is at two sites.

    Raises:
        SettingsError: If there is no such class or site, none is named, or `share` is outside [0, 1].
    """
    labels, names = np.asarray(labels).reshape(-1), numbered(sites)
    _check_choices("classes", classes, np.unique(labels).tolist())
    _check_choices("at", at, names)
    check_share(share)
    parts = iid(labels, sites, rng=rng)
    others = np.array([site for site, name in enumerate(names) if name not in at], dtype=np.int64)
    gains: list[list[np.ndarray]] = [[part[:0]] for part in parts]
    for label in sorted(set(classes)):
        lost = [part[:0] for part in parts]
        for site in (names.index(name) for name in sorted(set(at))):
            mine = rng.permutation(parts[site][labels[parts[site]] == label])
            lost[site] = mine[int(np.floor(share * len(mine) + 0.5)) :]
            parts[site] = np.setdiff1d(parts[site], lost[site])
        deal_evenly(rng.permutation(np.concatenate(lost)), others, gains, rng)
    return [np.sort(np.concatenate([part, *more])) for part, more in zip(parts, gains, strict=True)]


def _check_choices(option: str, values: list[int] | list[str], known: list[int] | list[str]) -> None:
    unknown = [value for value in values if value not in known]
    if unknown or not values:
        raise SettingsError(
            "unknown_choice",
            f"expected {option} out of {known}, at least one, got {values}",
            what=option,
            choice=values,
            expected=known,
        )
