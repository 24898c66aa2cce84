"""What partitions have in common: their checks, even splits, and shares of each class for each site."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from medfl.data.partition.iterative import iterative
from medfl.errors import SettingsError


def deal_evenly(
    members: np.ndarray, owners: np.ndarray, parts: Sequence[list[np.ndarray]], rng: np.random.Generator
) -> None:
    """Cut a pile into pieces whose sizes differ by at most 1 and add one to each owner's; without owners, do nothing.

    Args:
        members: The pile, shuffled, shape (n,).
        owners: Which sites share it, shape (m,).
        parts: The pieces of all sites; changed.
        rng: Decides who gets the larger pieces.
    """
    pieces = np.array_split(members, max(len(owners), 1))
    for owner, piece in zip(rng.permutation(owners), pieces, strict=False):
        parts[owner].append(piece)


def check_labels(labels: np.ndarray, sites: int, min_size: int = 1) -> np.ndarray:
    """The labels as an array, if they suffice.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites.
        min_size: Units each site needs.

    Raises:
        SettingsError: If there is no site, or there are too few units for all.
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
    """Check that a share of a class is a share.

    Args:
        share: The value of the setting ``share``.

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
"""Draws before giving up on the smallest size."""


Draw = Callable[[np.ndarray, int, float, np.random.Generator], np.ndarray | None]
"""Maps class sizes (C,), a number of sites K, alpha and a generator to counts (C, K), or to None for a draw in vain."""


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


def cut(shares: np.ndarray, size: int) -> np.ndarray | None:
    """Cut a class at the floors of its cumulative shares.

    Args:
        shares: What each site gets, >= 0, shape (K,); they are normalised.
        size: Units of the class.

    Returns:
        Units of each site, shape (K,), of sum `size`; None if all shares are 0, also by underflow at a tiny alpha.
    """
    if not shares.sum() > 0:
        return None
    ends = np.cumsum(shares / shares.sum())[:-1] * size
    cuts = np.floor(ends + 1e-9).astype(np.int64)  # a sum that misses 1 by a bit gives a site of share 0 nothing
    counts: np.ndarray = np.diff(np.concatenate([[0], np.minimum(cuts, size), [size]]))
    return counts


def split_by_draws(
    labels: np.ndarray, sites: int, alpha: float, min_size: int, draw: Draw, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw counts until each site has `min_size` units, then deal the shuffled classes accordingly.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites K, >= 1.
        alpha: Concentration, > 0.
        min_size: Units each site has at least, >= 0.
        draw: Draws the counts.
        rng: Source of randomness.

    Returns:
        Positions in `labels` of each site, ascending; each position is at exactly one site.

    Raises:
        SettingsError: If `alpha` is not positive, or `min_size` can't be reached.
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
            return _deal(labels, counts, rng)
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


def _deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle each class and cut it into the given counts."""
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
    """Choose a stratified share of units.

    Each class gives its share, rounded down; the classes with the largest remainders give one more (ties by chance)
    until the total is `fraction` of all, rounded to the nearest. What a class gives is shared out alike among its
    strata. Units with sets of labels are stratified iteratively (`medfl.data.partition.iterative`), to the same total.

    Args:
        labels: Label of each unit, shape (n,).
        fraction: Share to choose, in [0, 1).
        rng: Source of randomness.
        keep: Units that must remain, where there are that many.
        strata: What else to stratify by, a number for each unit, shape (n,); None means nothing.
        sets: Which of several labels, and of what else to stratify by, each unit has, shape (n, C), bool; None where
            `labels` and `strata` say all.

    Returns:
        Mask of the chosen units, shape (n,), bool.
    """
    total = max(0, min(math.floor(len(labels) * fraction + 0.5), len(labels) - keep))
    if sets is not None:
        return iterative(sets, np.array([len(labels) - total, total]), rng) == 1
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[_choose(np.arange(len(labels)), total, rng, *([labels] if strata is None else [labels, strata]))] = True
    return chosen


def _choose(members: np.ndarray, total: int, rng: np.random.Generator, *keys: np.ndarray) -> np.ndarray:
    """Choose `total` members, in shares by the first key, within each of its values by the second, and so on."""
    if not keys:
        return rng.permutation(members)[:total]
    _, inverse, sizes = np.unique(keys[0][members], return_inverse=True, return_counts=True)
    exact = sizes * (total / max(len(members), 1))
    take = np.floor(exact + 1e-9).astype(np.int64)
    order = np.lexsort((rng.random(len(sizes)), -np.round(exact - take, 9)))
    take[order[: total - take.sum()]] += 1
    parts = [_choose(members[inverse == number], count, rng, *keys[1:]) for number, count in enumerate(take.tolist())]
    return np.concatenate([members[:0], *parts])
