"""Label skew by number: each site holds k classes ("#C=k").

Source: Li et al., NIID-Bench, ICDE 2022 (``noniid-#label``); used so in FedFed, NeurIPS 2023.
"""

from __future__ import annotations

import numpy as np

from medfl.data.partition.shares import check_labels, deal_evenly
from medfl.errors import SettingsError


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
