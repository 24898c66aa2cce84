"""Label skew by dominance ("Subset", "long-tail"): nearly all of a site's data are of one class.

Source: Yang et al., FedFed, NeurIPS 2023 (``long-tail`` in its code).
"""

from __future__ import annotations

import numpy as np

from medfl.data.partition.shares import check_labels, check_share, deal_evenly
from medfl.errors import SettingsError


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
