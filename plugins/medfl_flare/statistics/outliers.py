"""Detection of outlier sites: each quantity of a site is compared with the median over the sites.

A site is an outlier in a quantity if two conditions hold. First, the distance to the median over the sites is more than
`MAX_ROBUST_DEVIATIONS` robust deviations. The robust deviation is 1.4826 times the median absolute deviation (Iglewicz
and Hoaglin, How to Detect and Handle Outliers, 1993), combined with the standard error of the site's own number.
Second, the difference is relevant (`MIN_DIFFERENCES`): with few or nearly equal sites the median absolute deviation is
close to zero. With fewer than `MIN_SITES` sites there are no outliers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from medfl_flare.statistics.disclosure import HISTOGRAM_BINS
from medfl_flare.statistics.site_statistics import DisclosedCounts, DisclosedQuantiles, SiteStatistics

MAX_ROBUST_DEVIATIONS = 3.5
"""Largest distance to the median that is not an outlier, in robust deviations."""
MIN_SITES = 3
"""Minimum number of sites for the detection of outliers."""
MAD_TO_STANDARD_DEVIATION = 1.4826
"""Ratio of the standard deviation of normally distributed numbers to their median absolute deviation."""

MIN_DIFFERENCES = {"times": 4.0, "share": 0.1, "spread": 0.5, "range": 0.02}
"""Smallest relevant differences.

* ``times``: ratio of numbers of images.
* ``share``: difference of shares of the images.
* ``spread``: difference of medians, as a part of the interquartile range within sites.
* ``range``: difference of medians, as a part of the number's range if the range is known beforehand."""

QUARTILE_INDICES, MEDIAN_INDEX = (1, 3), 2
"""Indices of the quartiles and the median in a list of quantiles."""


@dataclass(frozen=True)
class SiteQuantity:
    """A quantity of a site.

    Attributes:
        value: Value of the quantity.
        standard_error: Standard error of the value, >= 0.
        min_difference: Smallest relevant difference from the median, >= 0.
    """

    value: float
    standard_error: float
    min_difference: float


@dataclass(frozen=True)
class Outlier:
    """A quantity in which a site is an outlier.

    Attributes:
        site: Name of the site.
        quantity: Name of the quantity.
        value_text: The site's value as text.
        median_text: The median over the sites as text.
        deviations: Distance to the median in robust deviations; infinity for a quantity that is not a number.
    """

    site: str
    quantity: str
    value_text: str
    median_text: str
    deviations: float


def find_outliers(sites: Mapping[str, SiteStatistics]) -> list[Outlier]:
    """Return all outliers, sorted by site, and within a site by decreasing distance to the median.

    Args:
        sites: Maps the name of each site to the statistics that it discloses.
    """
    if len(sites) < MIN_SITES:
        return []
    made = [*_metadata_outliers(sites), *_size_outliers(sites), *_share_outliers(sites), *_median_outliers(sites)]
    return sorted(made, key=lambda outlier: (outlier.site, -outlier.deviations, outlier.quantity))


def find_far_sites(quantities: Mapping[str, SiteQuantity]) -> dict[str, tuple[float, float]]:
    """Return the sites whose value of one quantity is far from the median over the sites.

    Args:
        quantities: Maps each site that discloses the quantity to its value.

    Returns:
        Maps each far site to a pair: the distance to the median in robust deviations, and the median.
    """
    if len(quantities) < MIN_SITES:
        return {}
    middle = median(quantity.value for quantity in quantities.values())
    spread = MAD_TO_STANDARD_DEVIATION * median(abs(quantity.value - middle) for quantity in quantities.values())
    usual = median(quantity.standard_error for quantity in quantities.values())
    far_sites = {}
    for site, quantity in quantities.items():
        distance, scale = abs(quantity.value - middle), math.hypot(spread, quantity.standard_error, usual)
        if distance > MAX_ROBUST_DEVIATIONS * scale and distance >= quantity.min_difference and distance > 0:
            far_sites[site] = (distance / scale if scale else math.inf, middle)
    return far_sites


def _metadata_outliers(sites: Mapping[str, SiteStatistics]) -> Iterator[Outlier]:
    """Yield an outlier for each site with another objective, classes, shape or spacing than most sites."""
    readers: dict[str, Callable[[SiteStatistics], Any]] = {
        "objective": lambda each: each.objective,
        "names of the classes": lambda each: tuple(each.classes),
        "shape": lambda each: None if each.shape is None else tuple(each.shape),
        "spacing in mm": lambda each: None if each.spacing is None else tuple(each.spacing),
    }
    for quantity, read in readers.items():
        values = {site: read(each) for site, each in sites.items() if read(each) is not None}
        if len(values) < MIN_SITES:
            continue
        common, count = Counter(values.values()).most_common(1)[0]
        for site, value in values.items():
            if value != common and 2 * count > len(values):
                yield Outlier(site, quantity, _value_text(value), _value_text(common), math.inf)


def _size_outliers(sites: Mapping[str, SiteStatistics]) -> Iterator[Outlier]:
    """Yield an outlier for each site with far more or fewer images than the median site."""
    min_difference = math.log(MIN_DIFFERENCES["times"])
    quantities = {}
    for site, each in sites.items():
        if each.images:
            error = 0.0 if each.guarantee is None else each.guarantee.deviation / each.images
            quantities[site] = SiteQuantity(math.log(each.images), error, min_difference)
    for site, (deviations, middle) in find_far_sites(quantities).items():
        yield Outlier(site, "training images", f"{sites[site].images}", f"{math.exp(middle):.0f}", deviations)


def _share_outliers(sites: Mapping[str, SiteStatistics]) -> Iterator[Outlier]:
    """Yield an outlier for each table and far site: the value whose share differs most."""
    for title, tables in _group_by_title(sites, lambda each: each.tables).items():
        farthest: dict[str, Outlier] = {}
        for name in dict.fromkeys(name for table in tables.values() for name in table.names):
            quantities = {site: _share_quantity(table, name, sites[site]) for site, table in tables.items()}
            known = {site: site_quantity for site, site_quantity in quantities.items() if site_quantity is not None}
            for site, (deviations, middle) in find_far_sites(known).items():
                outlier = Outlier(site, f"{title}: {name}", f"{known[site].value:.1%}", f"{middle:.1%}", deviations)
                if site not in farthest or farthest[site].deviations < deviations:
                    farthest[site] = outlier
        yield from farthest.values()


def _share_quantity(table: DisclosedCounts, name: str, about: SiteStatistics) -> SiteQuantity | None:
    """Return the share of a site's images with one value, or None if it is suppressed."""
    count = dict(zip(table.names, table.counts, strict=False)).get(name)
    known = [count for count in table.counts if count is not None]
    total = about.images if about.images is not None else sum(known) if len(known) == len(table.counts) else None
    if count is None or not total:
        return None
    smoothed = (min(count, total) + 1) / (total + 2)  # noise can make a count larger than the total
    noise = 0.0 if about.guarantee is None else about.guarantee.deviation / total
    return SiteQuantity(
        min(1.0, count / total),
        math.hypot(math.sqrt(smoothed * (1 - smoothed) / total), noise),
        MIN_DIFFERENCES["share"],
    )


def _median_outliers(sites: Mapping[str, SiteStatistics]) -> Iterator[Outlier]:
    """Yield an outlier for each number and each site whose median over the images is far from the median site's."""
    for title, numbers in _group_by_title(sites, lambda each: each.numbers).items():
        spreads = [spread for each in numbers.values() if (spread := _interquartile_range(each)) is not None]
        usual = median(spreads) if spreads else 0.0
        quantities = {}
        for site, each in numbers.items():
            middle, spread, images = each.quantiles[MEDIAN_INDEX], _interquartile_range(each), sites[site].images
            if middle is None:
                continue
            width = each.span[1] - each.span[0] if each.span else 0.0
            min_difference = max(MIN_DIFFERENCES["spread"] * usual, MIN_DIFFERENCES["range"] * width, 1e-9)
            count = images or 2 * sites[site].min_count
            # the standard error of the median of a normal sample, from its interquartile range
            standard_error = 0.93 * (usual if spread is None else spread) / math.sqrt(count)
            guarantee = sites[site].guarantee
            if guarantee is not None:
                noise_share = 2 * math.sqrt(HISTOGRAM_BINS / 2) * guarantee.deviation / count
                standard_error = math.hypot(standard_error, usual * noise_share, width / HISTOGRAM_BINS)
            quantities[site] = SiteQuantity(middle, standard_error, min_difference)
        for site, (deviations, middle) in find_far_sites(quantities).items():
            yield Outlier(site, title, f"{quantities[site].value:.4g}", f"{middle:.4g}", deviations)


def _interquartile_range(numbers: DisclosedQuantiles) -> float | None:
    """Return the interquartile range, or None if a quartile is suppressed."""
    low, high = (numbers.quantiles[place] for place in QUARTILE_INDICES)
    return None if low is None or high is None else high - low


def _group_by_title(
    sites: Mapping[str, SiteStatistics], read: Callable[[SiteStatistics], Any]
) -> dict[str, dict[str, Any]]:
    """Return a mapping from each title to a mapping from each site to its entry with that title."""
    titles: dict[str, dict[str, Any]] = {}
    for site, each in sites.items():
        for entry in read(each):
            titles.setdefault(entry.title, {})[site] = entry
    return titles


def _value_text(value: object) -> str:
    """Return a value as text: edges as ``3 x 28 x 28``, names with commas."""
    if not isinstance(value, tuple):
        return str(value)
    if all(isinstance(edge, int | float) for edge in value):
        return " x ".join(f"{edge:g}" for edge in value)
    return ", ".join(map(str, value))
