"""Helpers of the partition schemes: argument checks, even splits, class shares and stratified choices.

A unit is one image, or a group of images that must stay together; see `medfl.data.partition`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from medfl.errors import SettingsError


def split_evenly(
    members: np.ndarray, owners: np.ndarray, parts: Sequence[list[np.ndarray]], rng: np.random.Generator
) -> None:
    """Split a pile among its owners into pieces whose sizes differ by at most 1, in place; without owners, do nothing.

    Args:
        members: Units of the pile, shuffled, shape (n,).
        owners: Site numbers that share the pile, shape (m,).
        parts: Pieces of all sites; one piece is appended for each owner.
        rng: Source of randomness that decides which owners get the larger pieces.
    """
    pieces = np.array_split(members, max(len(owners), 1))
    for owner, piece in zip(rng.permutation(owners), pieces, strict=False):
        parts[owner].append(piece)


def check_labels(labels: np.ndarray, sites: int, min_size: int = 1) -> np.ndarray:
    """Return the labels as a one-dimensional array; raise if there are too few for the sites.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites.
        min_size: Minimum number of units of a site.

    Raises:
        SettingsError: If `sites` is below 1, or there are fewer than `sites` * `min_size` units.
    """
    values = np.asarray(labels).reshape(-1)
    if sites < 1:
        raise SettingsError(
            "setting_out_of_range", f"expected at least 1 site, got {sites}", setting="sites", minimum=1, found=sites
        )
    if len(values) < sites * min_size:
        raise SettingsError(
            "too_few_images",
            f"{sites} sites of at least {min_size} images need {sites * min_size} images, there are {len(values)} "
            "(images that stay together count as one). Ask for fewer sites"
            + (" or a smaller min_size." if min_size > 1 else "."),
            sites=sites,
            min_size=min_size,
            expected=sites * min_size,
            found=len(values),
        )
    return values


def check_share(share: float) -> None:
    """Raise if the option ``share`` is outside [0, 1].

    Args:
        share: Value of the option.

    Raises:
        SettingsError: If it is outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected share in 0..1, got {share}",
            setting="share",
            minimum=0,
            maximum=1,
            found=share,
        )


MAX_TRIES = 5000
"""Maximum number of draws in the search for one that gives each site its minimum size."""


CountDraw = Callable[[np.ndarray, int, float, np.random.Generator], np.ndarray | None]
"""Function that draws the number of units of each class at each site.

It receives the sizes of the C classes, the number of sites K, alpha and a generator. It returns counts of shape (C, K),
or None if the draw failed.
"""


def class_shares(sites: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Draw the share of one class that each site gets, from Dir(alpha, ..., alpha).

    A share has mean 1/K and variance (1/K)(1 - 1/K) / (K alpha + 1) for K sites.

    Args:
        sites: Number of sites K, >= 1.
        alpha: Concentration, > 0. A small value gives most of a class to few sites.
        rng: Source of randomness.

    Returns:
        Shares of shape (K,), with sum 1.
    """
    return rng.dirichlet(np.full(sites, alpha))


def cut(shares: np.ndarray, size: int) -> np.ndarray | None:
    """Cut a class at the floors of its cumulative shares.

    Args:
        shares: Share of each site, >= 0, shape (K,); normalised here.
        size: Number of units of the class.

    Returns:
        Number of units of each site, shape (K,), with sum `size`. None if all shares are 0, also by underflow at a tiny
        alpha.
    """
    if not shares.sum() > 0:
        return None
    ends = np.cumsum(shares / shares.sum())[:-1] * size
    # 1e-9: a rounding error in the sum must not give units to a site of share 0
    cuts = np.floor(ends + 1e-9).astype(np.int64)
    counts: np.ndarray = np.diff(np.concatenate([[0], np.minimum(cuts, size), [size]]))
    return counts


def split_by_draws(
    labels: np.ndarray, sites: int, alpha: float, min_size: int, draw: CountDraw, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw counts until each site has `min_size` units, then split the shuffled classes accordingly.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites K, >= 1.
        alpha: Concentration, > 0.
        min_size: Minimum number of units of a site, >= 0.
        draw: Function that draws the counts.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `alpha` is not positive, or no draw of `MAX_TRIES` reaches `min_size`.
    """
    if not (np.isfinite(alpha) and alpha > 0):
        raise SettingsError("setting_out_of_range", f"expected alpha > 0, got {alpha}", setting="alpha", found=alpha)
    if min_size < 0:
        raise SettingsError(
            "setting_out_of_range",
            f"expected min_size >= 0, got {min_size}",
            setting="min_size",
            minimum=0,
            found=min_size,
        )
    labels = check_labels(labels, sites, min_size)
    _, sizes = np.unique(labels, return_counts=True)
    for _ in range(MAX_TRIES):
        counts = draw(sizes, sites, alpha, rng)
        if counts is not None and counts.sum(axis=0).min(initial=len(labels)) >= min_size:
            return _split_by_counts(labels, counts, rng)
    raise SettingsError(
        "unreachable_min_size",
        f"no draw of {MAX_TRIES} gave each of {sites} sites at least {min_size} of {len(labels)} images at alpha "
        f"{alpha}. Ask for fewer sites, a smaller min_size or a larger alpha.",
        tries=MAX_TRIES,
        sites=sites,
        min_size=min_size,
        images=len(labels),
        alpha=alpha,
    )


def _split_by_counts(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle each class and split it into the given counts.

    Args:
        labels: Label of each unit, shape (n,).
        counts: Number of units of each class (rows) at each site (columns).
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending.
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(counts.shape[1])]
    for label, row in zip(np.unique(labels), counts, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        for site, piece in enumerate(np.split(members, np.cumsum(row)[:-1])):
            parts[site].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in parts]


def holdout(
    labels: np.ndarray,
    fraction: float,
    rng: np.random.Generator,
    keep: int = 1,
    strata: np.ndarray | None = None,
    sets: np.ndarray | None = None,
) -> np.ndarray:
    """Choose a stratified fraction of the units.

    Each class gives its share, rounded down. The classes with the largest remainders give one more unit (ties at
    random) until the total is `fraction` of all units, rounded to the nearest. Within a class, the strata give
    proportional shares. Units with several labels are stratified iteratively (`iterative`), to the same total.

    Args:
        labels: Label of each unit, shape (n,).
        fraction: Fraction to choose, in [0, 1).
        rng: Source of randomness.
        keep: Minimum number of units that must remain, if there are as many.
        strata: Further stratum of each unit, an integer, shape (n,); None stratifies by labels only.
        sets: Labels and further strata of each unit if a unit may have several labels, shape (n, C), bool. None if
            `labels` and `strata` describe the units.

    Returns:
        Mask of the chosen units, shape (n,), bool.
    """
    total = max(0, min(math.floor(len(labels) * fraction + 0.5), len(labels) - keep))
    if sets is not None:
        return iterative(sets, np.array([len(labels) - total, total]), rng) == 1
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[
        _choose_proportionally(np.arange(len(labels)), total, rng, *([labels] if strata is None else [labels, strata]))
    ] = True
    return chosen


def _choose_proportionally(members: np.ndarray, total: int, rng: np.random.Generator, *keys: np.ndarray) -> np.ndarray:
    """Choose `total` members in proportion to the first key, within its values to the second key, and so on."""
    if not keys:
        return rng.permutation(members)[:total]
    _, inverse, sizes = np.unique(keys[0][members], return_inverse=True, return_counts=True)
    exact = sizes * (total / max(len(members), 1))
    take = np.floor(exact + 1e-9).astype(np.int64)
    order = np.lexsort((rng.random(len(sizes)), -np.round(exact - take, 9)))
    take[order[: total - take.sum()]] += 1
    parts = [
        _choose_proportionally(members[inverse == number], count, rng, *keys[1:])
        for number, count in enumerate(take.tolist())
    ]
    return np.concatenate([members[:0], *parts])


def iterative(sets: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Assign units to parts of fixed sizes so that each part has a proportional share of each label.

    The label with the fewest remaining units is assigned first, because rare labels need the free choice. Each of its
    units goes to the part that lacks most of that label; ties go to the part with most room, then to a random part.
    Units without any label come last. If each unit has one label, each part has its proportional share of each label,
    up to less than one unit.

    Args:
        sets: Labels of each unit, shape (n, C), bool.
        sizes: Number of units of each part, shape (k,), int64, >= 0, with sum n.
        rng: Source of randomness.

    Returns:
        Part of each unit, shape (n,), int64; part j has exactly `sizes[j]` units.

    Source: Sechidis, Tsoumakas and Vlahavas, "On the Stratification of Multi-Label Data", ECML PKDD 2011, algorithm 1.
    In the paper the sizes are targets only; here a full part gets no more units.
    """
    order, lot = rng.permutation(len(sets)), rng.permutation(len(sizes))
    room = sizes.astype(np.int64)
    wanted = sets.sum(axis=0, dtype=np.int64) * room[:, None]  # scaled by n, so that the wanted numbers are integers
    parts = np.full(len(sets), -1, dtype=np.int64)
    while (left := sets[parts < 0].sum(axis=0)).any():
        label = int(np.where(left > 0, left, len(sets) + 1).argmin())
        for unit in order[(parts[order] < 0) & sets[order, label]].tolist():
            open_parts = np.flatnonzero(room)
            part = open_parts[np.lexsort((lot[open_parts], room[open_parts], wanted[open_parts, label]))[-1]]
            parts[unit] = part
            room[part] -= 1
            wanted[part, sets[unit]] -= len(sets)
    parts[order[parts[order] < 0]] = rng.permutation(np.repeat(np.arange(len(sizes)), room))
    return parts
