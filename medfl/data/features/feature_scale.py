"""Mean and standard deviation of features over the training rows of several sites, from sums of each site.

A site contributes the number, mean and squared deviations of the known values of a feature: never a value of a single
row. A site with fewer than `MIN_KNOWN_VALUES` known values of a feature contributes nothing to it, as the sums of few
rows would disclose them. Features with only the values 0 and 1 are not scaled: their mean would disclose how many
patients have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medfl.errors import DataError
from medfl.records.feature_columns import FeatureColumns

MIN_KNOWN_VALUES = 10
"""Minimum number of known values of a feature behind disclosed sums; the default of federated statistics, too."""


@dataclass(frozen=True)
class FeatureScale:
    """Scale of features.

    Attributes:
        mean: Mean of each feature, to subtract; 0 for features that are not scaled.
        std: Standard deviation of each feature, to divide by, > 0; 1 for features that are not scaled.
    """

    mean: list[float]
    std: list[float]


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """Sums of a site's training rows for each of F features.

    Attributes:
        count: Number of known values, (F,); 0 where the sums are suppressed.
        mean: Their mean, (F,); 0 where there are none.
        squares: Sum of their squared differences from `mean`, (F,).
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    def plus(self, other: FeatureSums) -> FeatureSums:
        """Return the sums of the rows of both."""
        count = self.count + other.count
        total = np.maximum(count, 1)
        shift = other.mean - self.mean
        mean = self.mean + shift * other.count / total
        squares = self.squares + other.squares + shift**2 * self.count * other.count / total
        return FeatureSums(count, mean, squares)


def sum_features(rows: np.ndarray) -> FeatureSums:
    """Return the sums of a site's training rows; those of features with too few known values are suppressed.

    Args:
        rows: Training rows, (N, F), floating point; NaN where a value is missing.
    """
    values = rows.astype(np.float64)
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    shown = np.where(count >= MIN_KNOWN_VALUES, count, 0)
    mean = np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = (np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
    return FeatureSums(shown, np.where(shown > 0, mean, 0.0), np.where(shown > 0, squares, 0.0))


def scale_features(sites: Sequence[FeatureSums], columns: FeatureColumns) -> FeatureScale:
    """Return the scale of features from the sums of all sites.

    Args:
        sites: Sums of each site; at least one site.
        columns: Typed columns of the features.

    Raises:
        DataError: If no site has enough known values of a number.
    """
    total = sites[0]
    for sums in sites[1:]:
        total = total.plus(sums)
    is_scaled = np.array(columns.is_scaled)
    unknown = [columns.features[place] for place in np.flatnonzero(is_scaled & (total.count == 0))]
    if unknown:
        listed = ", ".join(f"'{name}'" for name in unknown)
        raise DataError(
            "too_few_values",
            f"expected at least {MIN_KNOWN_VALUES} training rows with a value at some site, there are fewer for "
            f"{listed}. Leave these columns out (medfl prep table --ignore-column).",
            features=unknown,
            minimum=MIN_KNOWN_VALUES,
        )
    deviation = np.sqrt(total.squares / np.maximum(total.count, 1))
    deviation = np.where(deviation > 0, deviation, 1.0)
    return FeatureScale(np.where(is_scaled, total.mean, 0.0).tolist(), np.where(is_scaled, deviation, 1.0).tolist())
