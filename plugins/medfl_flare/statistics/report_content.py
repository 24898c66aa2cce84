"""Contents of the statistics report as texts and rows; the HTML page and the Markdown file show the same."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medfl.data.features.feature_scale import FeatureScale
from medfl.utils.formats import MISSING, count, join_words, number, p_phrase
from medfl_flare.statistics.outliers import MIN_SITES, Outlier, find_outliers
from medfl_flare.statistics.site_statistics import (
    DisclosedCounts,
    DisclosedMoments,
    DisclosedQuantiles,
    SiteStatistics,
)

SUPPRESSED_TEXT = "suppressed"
"""Text in place of a suppressed number."""

BRIGHTNESS_TITLE = re.compile(r"brightness at (\d+)%(?:, (.*))?")
"""Pattern of the title of a brightness quantile; its groups are the level in percent, and the channel if there is
one."""


@dataclass(frozen=True)
class StatisticsReport:
    """Contents of a statistics report.

    Attributes:
        sites: Maps the name of each site to its statistics, sorted by name.
        missing: Maps each unavailable site to the reason.
        outliers: All outliers.
        source: Text on the origin of the statistics.
    """

    sites: Mapping[str, SiteStatistics]
    missing: Mapping[str, str]
    outliers: Sequence[Outlier]
    source: str

    @property
    def outlier_sites(self) -> list[str]:
        """Names of the sites that are outliers in at least one quantity, without duplicates."""
        return list(dict.fromkeys(outlier.site for outlier in self.outliers))

    @property
    def title(self) -> str:
        """Heading of the report."""
        if len(self.sites) < MIN_SITES:
            return f"{count(len(self.sites), 'site')} before training"
        if not self.outlier_sites:
            return f"No site stands out among {len(self.sites)}"
        if 2 * len(self.outlier_sites) > len(self.sites):
            return f"The {len(self.sites)} sites differ from each other"
        verb = "stands" if len(self.outlier_sites) == 1 else "stand"
        return f"{len(self.outlier_sites)} of {len(self.sites)} sites {verb} out: {join_words(self.outlier_sites)}"

    @property
    def sentence(self) -> str:
        """Sentence below the heading."""
        images = [each.images for each in self.sites.values() if each.images is not None]
        total = f"{number(sum(images))} training images at {count(len(images), 'site')} that disclosed their number. "
        rest = "" if len(self.sites) >= MIN_SITES else "With fewer than three sites there are no outliers. "
        return total + rest + "Validation and test images were not opened."

    @property
    def rows(self) -> list[list[str]]:
        """A row for each site: name, images, patients, shape, spacing, privacy, minimum count."""
        return [
            [
                site,
                SUPPRESSED_TEXT if each.images is None else number(each.images),
                _patients_text(each),
                MISSING if each.shape is None else " × ".join(map(str, each.shape)),
                MISSING if each.spacing is None else " × ".join(f"{edge:g}" for edge in each.spacing),
                guarantee_text(each),
                str(each.min_count),
            ]
            for site, each in self.sites.items()
        ]

    def tables(self) -> dict[str, tuple[list[str], dict[str, list[str]]]]:
        """Return a mapping from the title of each table to its cell names and its rows.

        The rows are a mapping from each site to its cells as texts.
        """
        titles: dict[str, dict[str, DisclosedCounts]] = {}
        for site, each in self.sites.items():
            for table in each.tables:
                titles.setdefault(table.title, {})[site] = table
        made = {}
        for title, by_site in titles.items():
            names = list(dict.fromkeys(name for table in by_site.values() for name in table.names))
            cells = {
                site: [_cell_text(dict(zip(table.names, table.counts, strict=False)), name) for name in names]
                for site, table in by_site.items()
            }
            made[title] = (names, cells)
        return made

    def numbers(self) -> dict[str, dict[str, DisclosedQuantiles]]:
        """Return a mapping from the title of each number to a mapping from each site to its quantiles."""
        titles: dict[str, dict[str, DisclosedQuantiles]] = {}
        for site, each in self.sites.items():
            for numbers in each.numbers:
                titles.setdefault(numbers.title, {})[site] = numbers
        return titles

    def scale(self) -> FeatureScale | None:
        """Return the scale of the features over all sites, for ``--mean`` and ``--std`` of a run.

        It follows from the sites' disclosed means and deviations. It is None if the sites have no features or different
        ones, or if no site disclosed the mean of a feature that a run standardises. Images with features have mean 0
        and deviation 1 for their own channels, which come first.
        """
        features = {tuple(each.features) for each in self.sites.values()}
        if len(features) != 1 or not (names := next(iter(features))):
            return None
        by_title: dict[str, list[DisclosedMoments]] = {}
        for moments in (moments for each in self.sites.values() for moments in each.moments):
            by_title.setdefault(moments.title, []).append(moments)
        pooled = {title: _pooled(moments) for title, moments in by_title.items()}
        if not pooled or None in pooled.values():
            return None
        shape = next((each.shape for each in self.sites.values() if each.shape is not None), [])
        channels = shape[0] - len(names) if len(shape) > 1 else 0
        scale = [(0.0, 1.0)] * channels + [pooled.get(name) or (0.0, 1.0) for name in names]
        return FeatureScale([mean for mean, _ in scale], [deviation for _, deviation in scale])

    def sites_with_outlier(self, title: str) -> set[str]:
        """Return the names of the sites that are outliers in a quantity, or in a value of a table.

        Args:
            title: Name of the quantity, or title of the table.
        """
        return {
            outlier.site
            for outlier in self.outliers
            if outlier.quantity == title or outlier.quantity.startswith(f"{title}: ")
        }


def _pooled(moments: Sequence[DisclosedMoments]) -> tuple[float, float] | None:
    """Return mean and standard deviation over the rows of several sites; None if no site disclosed its own."""
    parts = [(each.count, each.mean, each.deviation) for each in moments]
    known = [(count, mean, dev) for count, mean, dev in parts if count and mean is not None and dev is not None]
    if not known:
        return None
    rows = sum(count for count, _, _ in known)
    mean = sum(count * mean for count, mean, _ in known) / rows
    variance = sum(count * (dev**2 + (own - mean) ** 2) for count, own, dev in known) / rows
    return mean, math.sqrt(variance) or 1.0


def make_report(sites: Mapping[str, SiteStatistics], missing: Mapping[str, str], source: str) -> StatisticsReport:
    """Return the report of the sites' statistics, including the outliers."""
    ordered = dict(sorted(sites.items()))
    return StatisticsReport(ordered, dict(sorted(missing.items())), find_outliers(ordered), source)


def guarantee_text(each: SiteStatistics) -> str:
    """Return the privacy guarantee of a site as text."""
    if each.guarantee is None:
        return "none: exact numbers"
    guarantee = each.guarantee
    return (
        f"epsilon {guarantee.epsilon:g}, delta {guarantee.delta:g}, unit one training image, adjacency "
        f"{guarantee.adjacency}; noise of {guarantee.deviation:g} in each count"
    )


def deviation_text(outlier: Outlier) -> str:
    """Return the distance of an outlier to the median, and its p-value, as text."""
    if outlier.deviations == float("inf"):
        return "differs from most sites"
    return f"{outlier.deviations:.1f} standard errors, {p_phrase(outlier.p_value)}"


def quantile_texts(numbers: DisclosedQuantiles) -> list[str]:
    """Return the five quantiles as texts."""
    return [SUPPRESSED_TEXT if value is None else f"{value:.4g}" for value in numbers.quantiles]


def quantile_bands(report: StatisticsReport) -> dict[str, dict[str, list[float | None]]]:
    """Return the data of the quantile figures: for each figure's title, a mapping from each site to five quantiles.

    A brightness figure shows, for each channel, the medians over images of the quantiles within an image.
    """
    made: dict[str, dict[str, list[float | None]]] = {}
    for title, by_site in report.numbers().items():
        match = BRIGHTNESS_TITLE.fullmatch(title)
        for site, numbers in by_site.items():
            if match is None:
                made.setdefault(title, {})[site] = list(numbers.quantiles)
                continue
            of_image = made.setdefault(f"brightness{f', {match[2]}' if match[2] else ''}", {})
            of_image.setdefault(site, []).append(numbers.quantiles[2])
    counted = report.tables()  # a column of zeros and ones is shown as counts instead
    return {
        title: by_site
        for title, by_site in made.items()
        if title not in counted and any(map(_is_known, by_site.values()))
    }


def outliers_in_figure(report: StatisticsReport, title: str) -> set[str]:
    """Return the names of the sites that are outliers in a quantity of a figure.

    Args:
        report: Contents of the report.
        title: Title of the figure, a key of `quantile_bands`.
    """
    quantities = {outlier.quantity: BRIGHTNESS_TITLE.fullmatch(outlier.quantity) for outlier in report.outliers}
    shown = {
        quantity
        for quantity, match in quantities.items()
        if match is not None and title == f"brightness{f', {match[2]}' if match[2] else ''}"
    }
    return report.sites_with_outlier(title) | {outlier.site for outlier in report.outliers if outlier.quantity in shown}


def _is_known(values: Sequence[float | None]) -> bool:
    """Return whether any quantile is not suppressed."""
    return any(value is not None for value in values)


def _patients_text(each: SiteStatistics) -> str:
    """Return the number of patients as text."""
    if each.patients is not None:
        return number(each.patients)
    return SUPPRESSED_TEXT if each.images is None else MISSING


def _cell_text(counts: Mapping[str, int | None], name: str) -> str:
    """Return a cell of a table as text."""
    if name not in counts:
        return MISSING
    value = counts[name]
    return SUPPRESSED_TEXT if value is None else number(value)
