"""Label skew by scarcity: some classes are rare at some sites.

Figure 1 of Gao et al., FedSDC, MICCAI 2025, compares methods on sites that are alike and on sites where three classes
are limited.
"""

from __future__ import annotations

import numpy as np

from medfl.data.partition.iid import iid
from medfl.data.partition.plan import numbered
from medfl.data.partition.shares import check_share, deal_evenly
from medfl.errors import SettingsError


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
    _check("classes", classes, np.unique(labels).tolist())
    _check("at", at, names)
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


def _check(option: str, values: list[int] | list[str], known: list[int] | list[str]) -> None:
    unknown = [value for value in values if value not in known]
    if unknown or not values:
        raise SettingsError(
            "unknown_choice",
            f"expected {option} out of {known}, at least one, got {values}",
            what=option,
            choice=values,
            expected=known,
        )
