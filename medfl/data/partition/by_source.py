"""Small unlike sites out of several data sets: some classes and a few images of each, from one source a site.

Source: the setting NIID-2 of FedSDC: five sites from each of three data sets of blood cells, each with 5 or 6 classes
and 20 to 60 images of each; all other images test.
"""

from __future__ import annotations

import numpy as np

from medfl.data.partition.by_site import by_site
from medfl.errors import SettingsError


def by_source(
    labels: np.ndarray,
    sites: int | None = None,
    *,
    values: np.ndarray,
    sites_per_source: int = 5,
    min_classes: int = 5,
    max_classes: int = 6,
    min_per_class: int = 20,
    max_per_class: int = 60,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Draw several sites out of each source, and leave the rest to nobody.

    A site draws the number of its classes, then which, then the number of units of each, all uniformly within the
    ranges. Where a source runs short of a class, no site draws so much that a later one could not reach its smallest
    numbers; the ranges hold for every site. With ``--global-test remainder`` the rest is the server's test set.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Number of sites, if it is to be checked: `sites_per_source` for each source.
        values: The source of each unit, shape (n,), str.
        sites_per_source: Sites of each source, >= 1.
        min_classes: Classes of a site at least, >= 1.
        max_classes: Classes of a site at most; a source that has fewer gives fewer.
        min_per_class: Units of each class of a site at least, >= 1.
        max_per_class: Units of each class of a site at most.
        rng: Source of randomness.

    Returns:
        Name of each site, that of its source and a number, to its positions, ascending; no position is at two sites.

    Raises:
        DataError: If sources are missing or can't be told apart, as `by_site` has it.
        SettingsError: If a range is impossible, a source is too small, or `sites` is another number.
    """
    _check_range("classes", min_classes, max_classes)
    _check_range("per_class", min_per_class, max_per_class)
    if sites_per_source < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected sites_per_source >= 1, got {sites_per_source}",
            setting="sites_per_source",
            minimum=1,
            found=sites_per_source,
        )
    sources = by_site(labels, values=values)
    if sites is not None and sites != len(sources) * sites_per_source:
        raise SettingsError(
            "setting_out_of_range",
            f"expected {sites_per_source} sites for each of {len(sources)} sources, "
            f"{len(sources) * sites_per_source}, got {sites}. Leave out --sites, or correct sites_per_source.",
            setting="sites",
            expected=len(sources) * sites_per_source,
            found=sites,
        )
    rows_by_site: dict[str, np.ndarray] = {}
    width = max(2, len(str(sites_per_source)))
    for name, members in sources.items():
        classes, sizes = np.unique(labels[members], return_counts=True)
        room = sizes // min_per_class
        portions = np.minimum(room, sites_per_source).sum()
        if portions < sites_per_source * min_classes:
            raise SettingsError(
                "too_few_images",
                f"source '{name}' is too small: {sites_per_source} sites with {min_classes} classes of {min_per_class} "
                f"images each need {sites_per_source * min_classes} portions of {min_per_class} images, no site two of "
                f"one class; it has {portions}. Lower sites_per_source, min_classes or min_per_class.",
                source=name,
                expected=sites_per_source * min_classes,
                found=int(portions),
            )
        owns = _draw_classes(room, sites_per_source, min_classes, max_classes, rng)
        parts: list[list[np.ndarray]] = [[] for _ in range(sites_per_source)]
        for label, owners in zip(classes, owns.T, strict=True):
            pile = rng.permutation(members[labels[members] == label])
            _draw_units(pile, rng.permutation(np.flatnonzero(owners)), parts, min_per_class, max_per_class, rng)
        rows_by_site |= {
            f"{name}-{number:0{width}d}": np.sort(np.concatenate(part)) for number, part in enumerate(parts, 1)
        }
    return rows_by_site


def _check_range(what: str, low: int, high: int) -> None:
    if not 1 <= low <= high:
        raise SettingsError(
            "setting_out_of_range",
            f"expected 1 <= min_{what} <= max_{what}, got {low} and {high}",
            settings=(f"min_{what}", f"max_{what}"),
            found=(low, high),
        )


def _draw_classes(room: np.ndarray, sites: int, low: int, high: int, rng: np.random.Generator) -> np.ndarray:
    """Which classes each site has.

    The r sites that come after one can have `low` classes each if and only if the sum of min(room, r) over the classes
    is at least r * low. A class with more room than r does not change this sum when it is taken; of the others, the
    scarce ones, a site takes at most as many as the sum is above its bound.

    Args:
        room: How many sites each class suffices for, shape (C,); the condition holds for all `sites`.
        sites: Number of sites.
        low: Classes of a site at least.
        high: Classes of a site at most.
        rng: Source of randomness.

    Returns:
        Shape (sites, C), bool.
    """
    owns = np.zeros((sites, len(room)), dtype=bool)
    left = room.copy()
    for site in range(sites):
        later = sites - 1 - site
        spare = np.minimum(left, later).sum() - later * low
        order = rng.permutation(np.flatnonzero(left))
        scarce = left[order] <= later
        taken = order[~scarce | (scarce.cumsum() <= spare)][: rng.integers(low, high + 1)]
        owns[site, taken] = True
        left[taken] -= 1
    return owns


def _draw_units(
    pile: np.ndarray, owners: np.ndarray, parts: list[list[np.ndarray]], low: int, high: int, rng: np.random.Generator
) -> None:
    """Give each owner of a class `low` to `high` units of its pile, and leave `low` for each one that follows."""
    for number, owner in enumerate(owners):
        later = len(owners) - 1 - number
        count = rng.integers(low, min(high, len(pile) - later * low) + 1)
        parts[owner].append(pile[:count])
        pile = pile[count:]
