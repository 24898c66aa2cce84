"""Disclosure control for a site's statistics: apply the site's policy to exact numbers, or add noise.

With noise, an image adds at most one to each of J counts: the number of images, one cell of each table, and one bin of
the histogram of each number whose range is known beforehand. So the L2 norm of an image's contribution is at most
sqrt(J), the clipping bound of one Gaussian release (`medfl.privacy.gaussian`) of the unit ``sample``. A release is one
noised value that leaves the site; all disclosed numbers are computed from it. Exact numbers have no privacy guarantee:
the difference between two disclosures, before and after an image was added, reveals the image's values.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from medfl.privacy.gaussian import noise_multiplier
from medfl.settings import Privacy
from medfl.types import Meta
from medfl.utils.rng import SecretStream
from medfl.utils.text import first_names
from medfl_flare.statistics.measurements import QUANTILE_LEVELS, CountTable, ImageMeasurement, SiteMeasurements
from medfl_flare.statistics.site_statistics import (
    DISCLOSURE_KINDS,
    DisclosedCounts,
    DisclosedMoments,
    DisclosedQuantiles,
    PrivacyGuarantee,
    SiteStatistics,
)
from medfl_flare.statistics.suppression import disclosable_levels, suppress_counts

HISTOGRAM_BINS = 32
"""Number of bins of a noisy histogram."""

MAX_NAMED_TITLES = 3
"""Maximum number of titles in one sentence."""

MIN_SIGNAL_TO_NOISE = 2.0
"""Minimum ratio of the number of images on each side of a noisy quantile to the noise in that number."""

MOMENT_DIGITS = 6
"""Number of significant digits of a disclosed mean or deviation."""

SIGNIFICANT_DIGITS = 4
"""Number of significant digits of a disclosed quantile."""


@dataclass(frozen=True)
class DisclosurePolicy:
    """A site's rules for the disclosure of statistics.

    Attributes:
        kinds: Kinds of statistics that may be disclosed: ``size``, ``label_counts``, ``geometry``, ``intensities``,
            ``targets`` (`medfl_flare.statistics.site_statistics.DISCLOSURE_KINDS`).
        min_count: Minimum number of images (and of patients, if known) behind a disclosed count, >= 1.
    """

    kinds: Collection[str] = DISCLOSURE_KINDS
    min_count: int = 10


@dataclass(frozen=True)
class NoiseOptions:
    """Privacy setting and randomness of the noise.

    Attributes:
        privacy: Privacy setting of unit ``sample``; its clipping bound is not used.
        secret: Noise secret of at least 16 bytes that only the site knows.
        name: Name of the statistics: the same secret, name and data give the same noise.
        release: Function that charges the release to the site's ledger, its record of the privacy budget spent over all
            runs. It is called before anything leaves, with the noise multiplier, the name of the release, and a hash of
            the release. It may raise an error to refuse the release.
    """

    privacy: Privacy
    secret: bytes
    name: str
    release: Callable[[float, str, str], None] = lambda sigma, run, made_of: None


class _StatisticsSource(Protocol):
    """Source of counts and quantiles, exact or with noise."""

    @property
    def images(self) -> int:
        """Number of training images."""
        ...

    @property
    def patients(self) -> int | None:
        """Number of patients; None if unknown or not disclosable."""
        ...

    @property
    def guarantee(self) -> PrivacyGuarantee | None:
        """Guarantee of the noise; None for exact numbers."""
        ...

    @property
    def min_images_per_side(self) -> int:
        """Minimum number of images on each side of a quantile."""
        ...

    def tables(self) -> list[tuple[CountTable, list[int]]]:
        """Return each table with its counts."""
        ...

    def quantiles(self, measurement: ImageMeasurement) -> tuple[int, list[float]] | None:
        """Return the number of images and the quantiles at `QUANTILE_LEVELS`, or None if no quantiles are possible."""
        ...

    def moments(self, measurement: ImageMeasurement) -> DisclosedMoments:
        """Return mean and deviation of a feature, without numbers if they can't be disclosed."""
        ...


def disclose_statistics(
    site_measurements: SiteMeasurements, policy: DisclosurePolicy, noise: NoiseOptions | None = None
) -> SiteStatistics:
    """Return the statistics that a site discloses, after suppression of rare counts, or with noise.

    Args:
        site_measurements: Exact measurements of the site.
        policy: The site's own rules.
        noise: Options of the noise, or None for exact numbers.

    Raises:
        SettingsError: If no noise multiplier reaches the privacy budget.
        RefusedError: If the site's privacy ledger refuses the release.
    """
    source: _StatisticsSource = (
        _ExactStatistics(site_measurements, policy.min_count)
        if noise is None
        else _add_noise(site_measurements, policy, noise)
    )
    suppressed = [f"{kind}: the site's file does not allow it" for kind in DISCLOSURE_KINDS if kind not in policy.kinds]
    about: Meta = {
        "objective": site_measurements.objective.name,
        "min_count": policy.min_count,
        "guarantee": source.guarantee,
    }
    if site_measurements.objective.has_class_labels:
        about["classes"] = list(site_measurements.data.classes)
    if "geometry" in policy.kinds:
        about["features"] = list(site_measurements.data.features)
        about["shape"] = list(site_measurements.data.shape)
        about["spacing"] = None if site_measurements.spacing is None else list(site_measurements.spacing)
    if min(source.images, source.images if source.patients is None else source.patients) < policy.min_count:
        suppressed.append(f"all numbers: there are fewer than {policy.min_count} training images or patients")
        return SiteStatistics(**about, suppressed=suppressed)
    if "size" in policy.kinds:
        about |= {"images": source.images, "patients": source.patients}
    tables = [
        _suppress_table(table, counts, policy) for table, counts in source.tables() if "label_counts" in policy.kinds
    ]
    suppressed += [
        f"{table.title}: {table.counts.count(None)} of {len(table.counts)} counts, as one is below {policy.min_count}"
        for table in tables
        if None in table.counts
    ]
    measurements = [measurement for measurement in site_measurements.measurements if measurement.kind in policy.kinds]
    known = {
        measurement: quantiles
        for measurement in measurements
        if (quantiles := source.quantiles(measurement)) is not None
    }
    numbers = [
        _suppress_quantiles(measurement, *quantiles, source.min_images_per_side)
        for measurement, quantiles in known.items()
    ]
    if unknown := [measurement.title for measurement in measurements if measurement not in known]:
        suppressed.append(
            f"{first_names(unknown, MAX_NAMED_TITLES)}: the range is not known beforehand, so noise can't hide an image"
        )
    moments = [source.moments(measurement) for measurement in measurements if measurement.is_scaled]
    if withheld := [each.title for each in moments if each.mean is None]:
        titles = first_names(withheld, MAX_NAMED_TITLES)
        suppressed.append(f"means of features with fewer than {policy.min_count} known values, or with noise: {titles}")
    if incomplete := [each.title for each in numbers if None in each.quantiles]:
        titles = first_names(incomplete, MAX_NAMED_TITLES)
        suppressed.append(f"quantiles with fewer than {source.min_images_per_side} images on a side, of {titles}")
    return SiteStatistics(**about, tables=tables, numbers=numbers, moments=moments, suppressed=suppressed)


def _suppress_table(table: CountTable, counts: list[int], policy: DisclosurePolicy) -> DisclosedCounts:
    """Return a table with its rare counts suppressed."""
    return DisclosedCounts(title=table.title, names=list(table.names), counts=suppress_counts(counts, policy.min_count))


def _suppress_quantiles(
    measurement: ImageMeasurement, images: int, quantiles: list[float], min_images_per_side: int
) -> DisclosedQuantiles:
    """Return rounded quantiles; those with too few images on one side are suppressed."""
    levels = disclosable_levels(images, QUANTILE_LEVELS, min_images_per_side)
    shown = [
        float(f"{value:.{SIGNIFICANT_DIGITS}g}") if level in levels else None
        for level, value in zip(QUANTILE_LEVELS, quantiles, strict=True)
    ]
    return DisclosedQuantiles(title=measurement.title, kind=measurement.kind, span=measurement.span, quantiles=shown)


@dataclass
class _ExactStatistics:
    """Exact counts and quantiles.

    Attributes:
        site_measurements: Exact measurements of the site.
        min_images_per_side: Minimum number of images on each side of a quantile.
        guarantee: None, as exact numbers have no privacy guarantee.
    """

    site_measurements: SiteMeasurements
    min_images_per_side: int
    guarantee: None = None

    @property
    def images(self) -> int:
        """Number of training images."""
        return self.site_measurements.images

    @property
    def patients(self) -> int | None:
        """Number of patients; None if unknown."""
        return self.site_measurements.patients

    def tables(self) -> list[tuple[CountTable, list[int]]]:
        """Return each table with its counts."""
        return [(table, table.counts) for table in self.site_measurements.tables]

    def quantiles(self, measurement: ImageMeasurement) -> tuple[int, list[float]] | None:
        """Return the number of images that may be disclosed, and the quantiles at `QUANTILE_LEVELS`."""
        known = measurement.values[~np.isnan(measurement.values)]
        if not len(known):
            return 0, [0.0] * len(QUANTILE_LEVELS)
        return self._disclosable_count(len(known)), [float(value) for value in np.quantile(known, QUANTILE_LEVELS)]

    def moments(self, measurement: ImageMeasurement) -> DisclosedMoments:
        """Return mean and deviation of the known values, without numbers if these are fewer than the minimum count."""
        known = measurement.values[~np.isnan(measurement.values)]
        if len(known) < self.min_images_per_side:
            return DisclosedMoments(title=measurement.title)
        mean, deviation = (float(f"{value:.{MOMENT_DIGITS}g}") for value in (known.mean(), known.std()))
        count = max(self._disclosable_count(len(known)), self.min_images_per_side)
        return DisclosedMoments(title=measurement.title, count=count, mean=mean, deviation=deviation)

    def _disclosable_count(self, known: int) -> int:
        """Return a lower bound of the number of images with a value that may be disclosed.

        The set of disclosed quantiles must not reveal how many images lack a value if these are few.
        """
        lacking = self.images - known
        return self.images - self.min_images_per_side + 1 if 0 < lacking < self.min_images_per_side else known


@dataclass
class _NoisyStatistics:
    """Counts and quantiles computed from noisy counts.

    Attributes:
        images: Noisy number of training images.
        guarantee: Privacy guarantee of the noise.
        min_images_per_side: Minimum number of images on each side of a quantile.
        counts: Each table with its noisy counts.
        histograms: Maps the title of each measured number to its noisy histogram.
        patients: None, as the number of patients is not disclosed.
    """

    images: int
    guarantee: PrivacyGuarantee
    min_images_per_side: int
    counts: list[tuple[CountTable, list[int]]]
    histograms: dict[str, np.ndarray] = field(default_factory=dict)
    patients: None = None

    def tables(self) -> list[tuple[CountTable, list[int]]]:
        """Return each table with its noisy counts."""
        return self.counts

    def quantiles(self, measurement: ImageMeasurement) -> tuple[int, list[float]] | None:
        """Return the number of images and the quantiles from a noisy histogram, or None if the range is unknown."""
        if measurement.span is None:
            return None
        total = float(self.histograms[measurement.title].sum())
        below = np.concatenate([[0.0], np.cumsum(self.histograms[measurement.title])])
        # noise can make the cumulative counts decrease: take the mean of the two nearest monotone bounds
        rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
        edges = np.linspace(*measurement.span, HISTOGRAM_BINS + 1)
        grows = np.concatenate([[True], np.diff(rising) > 0])
        wanted = np.asarray(QUANTILE_LEVELS) * rising[-1]
        return max(0, round(total)), [float(value) for value in np.interp(wanted, rising[grows], edges[grows])]

    def moments(self, measurement: ImageMeasurement) -> DisclosedMoments:
        """Return no numbers: means of numbers without a known range can't be released with noise."""
        return DisclosedMoments(title=measurement.title)


def _add_noise(site_measurements: SiteMeasurements, policy: DisclosurePolicy, noise: NoiseOptions) -> _NoisyStatistics:
    """Count the images, add noise to all counts in one release, and charge the release to the ledger."""
    tables = [table for table in site_measurements.tables if table.public and "label_counts" in policy.kinds]
    measurements = [
        measurement
        for measurement in site_measurements.measurements
        if measurement.span is not None and measurement.kind in policy.kinds
    ]
    blocks = [np.array([site_measurements.images])]
    blocks += [np.array(table.counts) for table in tables]
    blocks += [_histogram(measurement) for measurement in measurements]
    exact = np.concatenate(blocks).astype(np.float64)
    sigma = noise_multiplier(noise.privacy, 1)
    deviation = sigma * math.sqrt(len(blocks))
    titles = [table.title for table in tables] + [measurement.title for measurement in measurements]
    # part of the key of the noise: a change of this text changes all noise
    run = f"description {noise.name} of {hashlib.sha256(repr(titles).encode()).hexdigest()[:16]}"
    digest = hashlib.sha256(exact.tobytes()).hexdigest()
    draws = SecretStream(noise.secret, run, digest, f"{sigma!r}").normal((len(exact),)).numpy()
    noised = exact + deviation * draws
    noise.release(sigma, run, hashlib.sha256(noised.tobytes()).hexdigest())
    first, *parts = np.split(noised, np.cumsum([len(block) for block in blocks])[:-1])
    privacy = noise.privacy
    guarantee = PrivacyGuarantee(
        adjacency=privacy.adjacency, epsilon=privacy.epsilon, delta=privacy.delta, deviation=round(deviation, 3)
    )
    counts = [
        (table, [max(0, round(float(count))) for count in part])
        for table, part in zip(tables, parts[: len(tables)], strict=True)
    ]
    named = {measurement.title: part for measurement, part in zip(measurements, parts[len(tables) :], strict=True)}
    min_images_per_side = max(
        policy.min_count, math.ceil(MIN_SIGNAL_TO_NOISE * deviation * math.sqrt(HISTOGRAM_BINS / 2))
    )
    return _NoisyStatistics(max(0, round(float(first[0]))), guarantee, min_images_per_side, counts, named)


def _histogram(measurement: ImageMeasurement) -> np.ndarray:
    """Return the number of images in each bin of a number's range; an image without the number is in no bin."""
    known = measurement.values[~np.isnan(measurement.values)]
    return np.histogram(known, bins=HISTOGRAM_BINS, range=measurement.span)[0]
