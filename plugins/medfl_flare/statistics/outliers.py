"""Detection of outlier sites: each quantity of a site is compared with the median over the other sites.

A site is an outlier in a quantity if two conditions hold:

1. The difference is relevant: at least the smallest relevant difference of the quantity (`MIN_DIFFERENCES`).
2. A test rejects, at `SIGNIFICANCE` after Holm's correction for all comparisons of all sites and quantities, that the
   site is one of a population of sites to which the others belong. The standard error of the difference has three
   parts: the sampling errors of the site and of the median over the others, with the noise of each number, and the
   standard deviation of the population.

Few sites can't show how much sites differ ordinarily: two of three are often close to each other by chance. So the
population's standard deviation is assumed to be half the smallest relevant difference, with `ASSUMED_FREEDOM` degrees
of freedom. The variance of the other sites beyond their sampling errors moderates it (Smyth 2004): both variances are
averaged with their degrees of freedom as weights, and the test uses Student's t distribution with the sum of these.
With fewer than `MIN_SITES` sites there are no outliers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, variance
from typing import Any

from medfl_flare.statistics.disclosure import HISTOGRAM_BINS
from medfl_flare.statistics.site_statistics import DisclosedCounts, DisclosedQuantiles, SiteStatistics
from medfl_report.statistics.families import holm

SIGNIFICANCE = 0.05
"""Probability, over all comparisons together, that a site of the same population as the others is an outlier."""
MIN_SITES = 3
"""Minimum number of sites for the detection of outliers."""
MAD_TO_STANDARD_DEVIATION = 1.4826
"""Ratio of the standard deviation of normally distributed numbers to their median absolute deviation."""
MAD_EFFICIENCY = 0.37
"""Efficiency of the median absolute deviation: it estimates a normal standard deviation as well as this share of the
numbers would by their sample standard deviation."""
MIN_SITES_FOR_MAD = 5
"""Minimum number of other sites whose variation is estimated by the median absolute deviation, which ignores further
outliers. Of fewer sites it is often zero by chance, so their sample standard deviation is used."""
ASSUMED_FREEDOM = 10
"""Degrees of freedom of the assumed variation between sites: it counts like an estimate from eleven sites."""

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
        min_difference: Smallest relevant difference from the median over the other sites, >= 0.
    """

    value: float
    standard_error: float
    min_difference: float


@dataclass(frozen=True)
class Comparison:
    """Comparison of a quantity of a site with the other sites.

    Attributes:
        median: Median over the other sites.
        deviations: Distance to the median in standard errors of the difference.
        p_value: Two-sided p-value before the correction for several comparisons.
        is_relevant: Whether the distance is at least the smallest relevant difference.
    """

    median: float
    deviations: float
    p_value: float
    is_relevant: bool


@dataclass(frozen=True)
class Outlier:
    """A quantity in which a site is an outlier.

    Attributes:
        site: Name of the site.
        quantity: Name of the quantity.
        value_text: The site's value as text.
        median_text: The median over the other sites as text.
        deviations: Distance to the median in standard errors; infinity for a quantity that is not a number.
        p_value: p-value after Holm's correction; 0 for a quantity that is not a number.
    """

    site: str
    quantity: str
    value_text: str
    median_text: str
    deviations: float
    p_value: float


@dataclass(frozen=True)
class _Candidate:
    """Comparison that can make a site an outlier, with the texts of its report.

    Attributes:
        site: Name of the site.
        group: Name of the quantity, or of the table whose cells are compared. A site has one outlier in each group.
        quantity: Name of the quantity in the report.
        value_text: The site's value as text.
        median_text: The median over the other sites as text.
        comparison: Result of the comparison.
    """

    site: str
    group: str
    quantity: str
    value_text: str
    median_text: str
    comparison: Comparison


def find_outliers(sites: Mapping[str, SiteStatistics]) -> list[Outlier]:
    """Return all outliers, sorted by site, and within a site by decreasing distance to the median.

    Args:
        sites: Maps the name of each site to the statistics that it discloses.
    """
    if len(sites) < MIN_SITES:
        return []
    candidates = [*_size_candidates(sites), *_share_candidates(sites), *_median_candidates(sites)]
    adjusted = holm([candidate.comparison.p_value for candidate in candidates])
    farthest: dict[tuple[str, str], Outlier] = {}
    for candidate, p_value in zip(candidates, adjusted, strict=True):
        comparison, key = candidate.comparison, (candidate.site, candidate.group)
        if not comparison.is_relevant or p_value > SIGNIFICANCE:
            continue
        if key not in farthest or farthest[key].deviations < comparison.deviations:
            farthest[key] = Outlier(
                site=candidate.site,
                quantity=candidate.quantity,
                value_text=candidate.value_text,
                median_text=candidate.median_text,
                deviations=comparison.deviations,
                p_value=p_value,
            )
    made = [*_metadata_outliers(sites), *farthest.values()]
    return sorted(made, key=lambda outlier: (outlier.site, -outlier.deviations, outlier.quantity))


def compare_sites(quantities: Mapping[str, SiteQuantity]) -> dict[str, Comparison]:
    """Compare each site with the median over the other sites; see the module for the test.

    Args:
        quantities: Maps each site that discloses the quantity to its value.

    Returns:
        Maps each site to its comparison; empty for fewer than `MIN_SITES` sites.
    """
    if len(quantities) < MIN_SITES:
        return {}
    return {
        site: _compare(quantity, [other for name, other in quantities.items() if name != site])
        for site, quantity in quantities.items()
    }


def _compare(quantity: SiteQuantity, others: Sequence[SiteQuantity]) -> Comparison:
    from scipy.special import stdtr  # scipy takes time to import

    middle = median(other.value for other in others)
    # variance of a median, relative to the variance of a mean; the median of two numbers is their mean
    inefficiency = 1.0 if len(others) == 2 else math.pi / 2
    errors = [other.standard_error for other in others]
    sampling = inefficiency * len(others) / sum(1 / error for error in errors) ** 2 if all(errors) else 0.0
    between_others, freedom = _variance([other.value for other in others])
    observed = max(0.0, between_others - median(error**2 for error in errors))
    assumed = (quantity.min_difference / 2) ** 2
    population = (ASSUMED_FREEDOM * assumed + freedom * observed) / (ASSUMED_FREEDOM + freedom)
    between = population * (1 + inefficiency / len(others))
    scale, distance = math.sqrt(quantity.standard_error**2 + sampling + between), abs(quantity.value - middle)
    deviations = distance / scale if scale else math.inf if distance else 0.0
    p_value = 2 * float(stdtr(ASSUMED_FREEDOM + freedom, -deviations))
    return Comparison(middle, deviations, p_value, distance >= quantity.min_difference and distance > 0)


def _variance(values: Sequence[float]) -> tuple[float, float]:
    """Return the variance of the values of other sites, and the degrees of freedom of this estimate."""
    if len(values) < MIN_SITES_FOR_MAD:
        return variance(values), len(values) - 1.0
    middle = median(values)
    deviation = MAD_TO_STANDARD_DEVIATION * median(abs(value - middle) for value in values)
    return deviation**2, MAD_EFFICIENCY * (len(values) - 1)


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
                yield Outlier(site, quantity, _value_text(value), _value_text(common), math.inf, 0.0)


def _size_candidates(sites: Mapping[str, SiteStatistics]) -> Iterator[_Candidate]:
    """Yield the comparison of each site's number of images, on a logarithmic scale."""
    min_difference = math.log(MIN_DIFFERENCES["times"])
    quantities = {}
    for site, each in sites.items():
        if each.images:
            error = 0.0 if each.guarantee is None else each.guarantee.deviation / each.images
            quantities[site] = SiteQuantity(math.log(each.images), error, min_difference)
    title = "training images"
    for site, comparison in compare_sites(quantities).items():
        yield _Candidate(site, title, title, f"{sites[site].images}", f"{math.exp(comparison.median):.0f}", comparison)


def _share_candidates(sites: Mapping[str, SiteStatistics]) -> Iterator[_Candidate]:
    """Yield the comparison of each share of each table."""
    for title, tables in _group_by_title(sites, lambda each: each.tables).items():
        for name in dict.fromkeys(name for table in tables.values() for name in table.names):
            quantities = {site: _share_quantity(table, name, sites[site]) for site, table in tables.items()}
            known = {site: site_quantity for site, site_quantity in quantities.items() if site_quantity is not None}
            for site, comparison in compare_sites(known).items():
                value, middle = f"{known[site].value:.1%}", f"{comparison.median:.1%}"
                yield _Candidate(site, title, f"{title}: {name}", value, middle, comparison)


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


def _median_candidates(sites: Mapping[str, SiteStatistics]) -> Iterator[_Candidate]:
    """Yield the comparison of each site's median over its images, for each number."""
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
        for site, comparison in compare_sites(quantities).items():
            value, middle_text = f"{quantities[site].value:.4g}", f"{comparison.median:.4g}"
            yield _Candidate(site, title, title, value, middle_text, comparison)


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
