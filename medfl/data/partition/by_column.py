"""Partition schemes that use a column of the data list: one or several sites for each value.

A column is a key of the list's records, such as ``hospital``.
A unit is one image, or a group of images that must stay together; see `medfl.data.partition`.
"""

from __future__ import annotations

import re
import unicodedata

import numpy as np

from medfl.errors import DataError, SettingsError


def by_site(
    labels: np.ndarray, sites: int | None = None, *, values: np.ndarray, rng: np.random.Generator | None = None
) -> dict[str, np.ndarray]:
    """Make one site for each value of a column, for example the hospital or the scanner.

    Use it if the data come from several centres and each centre should be a site.

    Args:
        labels: Label of each unit, shape (n,); ignored.
        sites: Expected number of sites, to be checked; None skips the check.
        values: Entry of each unit in the column, shape (n,), str.
        rng: Ignored: the result is not random.

    Returns:
        Maps each site's name (the value, made safe by `folder_name`) to its positions, ascending.

    Raises:
        DataError: If a value is missing or gives an empty name, or two values give the same name.
        SettingsError: If `sites` is given and differs from the number of values.

    Source: the natural split by centre, as the FLamby benchmark has it (du Terrail et al., NeurIPS 2022).
    """
    distinct = np.unique(np.asarray(values, dtype=str))
    names = [folder_name(value) for value in distinct.tolist()]
    empty = np.isin(values, [value for value, name in zip(distinct, names, strict=True) if not name])
    if empty.any():
        raise DataError(
            "missing_value",
            f"{empty.sum()} of {len(values)} values of the column are missing, or have no Latin letter or digit "
            "to form a folder name. Fill them in, or leave these images out.",
            count=int(empty.sum()),
            total=len(values),
        )
    folded = [name.casefold() for name in names]
    double = sorted({name for name, low in zip(names, folded, strict=True) if folded.count(low) > 1})
    if double:
        raise DataError(
            "duplicate_name",
            f"different values of the column give the same folder name: {', '.join(double)} (upper and lower case "
            "count as equal). Write them alike if they mean one site, or make them differ.",
            names=double,
        )
    if sites is not None and sites != len(distinct):
        raise SettingsError(
            "setting_out_of_range",
            f"expected as many sites as the column has values, {len(distinct)}, got {sites}",
            setting="sites",
            expected=len(distinct),
            found=sites,
        )
    return {name: np.flatnonzero(values == value) for name, value in zip(names, distinct, strict=True)}


def folder_name(value: str) -> str:
    """Return a folder name that is safe on every system: letters a to z, digits, underscores and single dashes.

    Accents are removed, every other run of characters becomes one dash, and leading and trailing dashes are removed.

    >>> folder_name("Hôpital Nord / 2")
    'Hopital-Nord-2'
    """
    plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9_]+", "-", plain).strip("-")


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
    """Draw several small sites from each source and leave the remaining units unassigned.

    Use it to simulate many small sites with domain shift (each source has its own appearance) and label skew (each site
    has some of the classes only). With ``--server-test remainder`` the remaining units become the server's test set.

    Each site draws the number of its classes, then the classes, then the number of units of each class, all uniformly
    within the given ranges. If a source is short of a class, a site takes only as many units as leave the minimum for
    the sites after it. The ranges therefore hold for every site.

    Args:
        labels: Label of each unit, shape (n,).
        sites: Expected number of sites, to be checked: `sites_per_source` times the number of sources. None skips
            the check.
        values: Source of each unit, shape (n,), str.
        sites_per_source: Number of sites drawn from each source, >= 1.
        min_classes: Minimum number of classes of a site, >= 1.
        max_classes: Maximum number of classes of a site, >= `min_classes`. A source with fewer classes gives fewer.
        min_per_class: Minimum number of units of each class of a site, >= 1.
        max_per_class: Maximum number of units of each class of a site, >= `min_per_class`.
        rng: Source of randomness.

    Returns:
        Maps each site's name (source name and a number) to its positions, ascending; no position is at two sites.

    Raises:
        DataError: If sources are missing or their names coincide, as in `by_site`.
        SettingsError: If a range is impossible, a source is too small, or `sites` is another number.

    Source: FedSDC (Gao et al., MICCAI 2025), setting NIID-2: five sites from each of three data sets of blood cells,
    each site with 5 or 6 classes and 20 to 60 images of each class; all other images are test images.
    """
    _check_option_range("classes", min_classes, max_classes)
    _check_option_range("per_class", min_per_class, max_per_class)
    sources = by_site(labels, values=values)
    _check_sites(sites, len(sources), sites_per_source)
    rows_by_site: dict[str, np.ndarray] = {}
    width = max(2, len(str(sites_per_source)))
    for source, members in sources.items():
        classes, sizes = np.unique(labels[members], return_counts=True)
        room = sizes // min_per_class
        _check_source_size(source, room, sites_per_source, min_classes, min_per_class)
        has_class = _draw_classes(room, sites_per_source, min_classes, max_classes, rng)
        parts: list[list[np.ndarray]] = [[] for _ in range(sites_per_source)]
        for label, owners in zip(classes, has_class.T, strict=True):
            pile = rng.permutation(members[labels[members] == label])
            _draw_units(pile, rng.permutation(np.flatnonzero(owners)), parts, min_per_class, max_per_class, rng)
        for number, part in enumerate(parts, 1):
            rows_by_site[f"{source}-{number:0{width}d}"] = np.sort(np.concatenate(part))
    return rows_by_site


def _check_option_range(what: str, low: int, high: int) -> None:
    """Raise if the limits ``min_<what>`` and ``max_<what>`` are not 1 <= min <= max."""
    if not 1 <= low <= high:
        raise SettingsError(
            "setting_out_of_range",
            f"expected 1 <= min_{what} <= max_{what}, got {low} and {high}",
            settings=(f"min_{what}", f"max_{what}"),
            found=(low, high),
        )


def _check_sites(sites: int | None, sources: int, sites_per_source: int) -> None:
    """Raise if `sites_per_source` is below 1, or `sites` is given and is not the number of sites of all sources.

    Args:
        sites: Expected number of sites; None skips its check.
        sources: Number of sources.
        sites_per_source: Number of sites drawn from each source.
    """
    if sites_per_source < 1:
        raise SettingsError(
            "setting_out_of_range",
            f"expected sites_per_source >= 1, got {sites_per_source}",
            setting="sites_per_source",
            minimum=1,
            found=sites_per_source,
        )
    if sites is not None and sites != sources * sites_per_source:
        raise SettingsError(
            "setting_out_of_range",
            f"expected {sites_per_source} sites for each of {sources} sources, {sources * sites_per_source}, got "
            f"{sites}. Leave out --sites, or correct sites_per_source.",
            setting="sites",
            expected=sources * sites_per_source,
            found=sites,
        )


def _check_source_size(
    source: str, room: np.ndarray, sites_per_source: int, min_classes: int, min_per_class: int
) -> None:
    """Raise if a source has too few units for the minimum of each of its sites.

    Args:
        source: Name of the source.
        room: Number of sites that each class suffices for, shape (C,).
        sites_per_source: Number of sites drawn from the source.
        min_classes: Minimum number of classes of a site.
        min_per_class: Minimum number of units of each class of a site.
    """
    needed = sites_per_source * min_classes
    portions = int(np.minimum(room, sites_per_source).sum())
    if portions < needed:
        raise SettingsError(
            "too_few_images",
            f"source '{source}' is too small: {sites_per_source} sites with {min_classes} classes of {min_per_class} "
            f"images each need {needed} portions of {min_per_class} images, at most one of each class for a site; it "
            f"has {portions}. Lower sites_per_source, min_classes or min_per_class.",
            source=source,
            expected=needed,
            found=portions,
        )


def _draw_classes(room: np.ndarray, sites: int, low: int, high: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the classes of each site.

    Feasibility: the r sites that come after a site can have `low` classes each if and only if the sum of min(room, r)
    over the classes is at least r * low. Taking a class with more room than r does not change this sum. Of the other
    classes, the scarce ones, a site takes at most as many as the sum exceeds its bound.

    Args:
        room: Number of sites that each class suffices for, shape (C,); must satisfy the condition above for r =
            `sites`.
        sites: Number of sites.
        low: Minimum number of classes of a site.
        high: Maximum number of classes of a site.
        rng: Source of randomness.

    Returns:
        Whether each site has each class, shape (sites, C), bool.
    """
    has_class = np.zeros((sites, len(room)), dtype=bool)
    left = room.copy()
    for site in range(sites):
        later = sites - 1 - site
        spare = np.minimum(left, later).sum() - later * low
        order = rng.permutation(np.flatnonzero(left))
        scarce = left[order] <= later
        taken = order[~scarce | (scarce.cumsum() <= spare)][: rng.integers(low, high + 1)]
        has_class[site, taken] = True
        left[taken] -= 1
    return has_class


def _draw_units(
    pile: np.ndarray, owners: np.ndarray, parts: list[list[np.ndarray]], low: int, high: int, rng: np.random.Generator
) -> None:
    """Append `low` to `high` units of a class to the part of each owner, and reserve `low` for each owner that follows.

    Args:
        pile: Units of the class, shuffled.
        owners: Sites that have the class.
        parts: Units of all sites; changed in place.
        low: Minimum number of units for an owner.
        high: Maximum number of units for an owner.
        rng: Source of randomness.
    """
    for number, owner in enumerate(owners):
        later = len(owners) - 1 - number
        count = rng.integers(low, min(high, len(pile) - later * low) + 1)
        parts[owner].append(pile[:count])
        pile = pile[count:]
