"""Natural partition: the sites are those that a column names."""

from __future__ import annotations

import re
import unicodedata

import numpy as np

from medfl.errors import DataError, SettingsError


def by_site(
    labels: np.ndarray, sites: int | None = None, *, values: np.ndarray, rng: np.random.Generator | None = None
) -> dict[str, np.ndarray]:
    """One site for each value of a column.

    Args:
        labels: Label of each unit, shape (n,); not used.
        sites: Number of sites, if it is to be checked; otherwise as many as there are values.
        values: The column's value of each unit, shape (n,), str.
        rng: Not used: nothing is left to chance.

    Returns:
        Name of each site, made safe for a folder by `folder_name`, to its positions, ascending.

    Raises:
        DataError: If a value is missing or leaves nothing for a name, or two values give one name.
        SettingsError: If `sites` is given and there are more or fewer values.
    """
    distinct = np.unique(np.asarray(values, dtype=str))
    names = [folder_name(value) for value in distinct.tolist()]
    empty = np.isin(values, [value for value, name in zip(distinct, names, strict=True) if not name])
    if empty.any():
        raise DataError(
            "missing_value",
            f"{empty.sum()} of {len(values)} values of the column are missing, or have no Latin letter or digit "
            "for the name of a folder. Fill them in, or leave these images out.",
            count=int(empty.sum()),
            total=len(values),
        )
    folded = [name.casefold() for name in names]
    double = sorted({name for name, low in zip(names, folded, strict=True) if folded.count(low) > 1})
    if double:
        raise DataError(
            "duplicate_name",
            f"several values of the column give the same site's folder: {', '.join(double)} (upper and lower case "
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
    """A name that is safe as a folder everywhere: letters a to z, digits, underscores and single dashes.

    Accents are dropped, every other run of characters becomes a dash, and dashes at the ends go.

    >>> folder_name("Hôpital Nord / 2")
    'Hopital-Nord-2'
    """
    plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9_]+", "-", plain).strip("-")
