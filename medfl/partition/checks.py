"""What every partition checks first."""

from __future__ import annotations

import numpy as np

from medfl.errors import SettingsError


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
        raise SettingsError(f"expected at least 1 site, got {sites}")
    if len(values) < sites * min_size:
        raise SettingsError(
            f"{sites} sites of at least {min_size} images need {sites * min_size} images, there are {len(values)} "
            "(images that stay together count as one). Ask for fewer sites"
            + (" or a smaller min_size." if min_size > 1 else ".")
        )
    return values
