"""From what is measured at a site to what it tells: exact numbers as far as its policy allows, or numbers with noise.

With noise an image adds at most one to each of J counts or none: the number of images, a cell of each table, and a bin
of the histogram of each number whose range all know. So the L2 norm of what an image adds is at most sqrt(J), the
clipping bound of one Gaussian release (`medfl.privacy.gaussian`) of the unit ``sample``; all that is told is made of
it. Exact numbers promise nothing: two descriptions, before and after an image came, differ by it.
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
from medfl_flare.statistics.description import FACTS, Counts, Description, Numbers, Promise
from medfl_flare.statistics.measures import SHARES, Measure, Measured, Table
from medfl_flare.statistics.withholding import shown_counts, shown_levels

BINS = 32
"""Of a histogram with noise."""

NAMED = 3
"""Numbers that a sentence names, at most."""

CLEAR = 2.0
"""A quantile is told if the images on each side of it are this many times the noise in their number."""

DIGITS = 4
"""Of a quantile that is told."""


@dataclass(frozen=True)
class Policy:
    """What may be told.

    Attributes:
        facts: Of `medfl_flare.statistics.description.FACTS`.
        min_count: Fewest images, and patients where they are known, of which a number may be told, >= 1.
    """

    facts: Collection[str] = FACTS
    min_count: int = 10


@dataclass(frozen=True)
class Noise:
    """How numbers are noised.

    Attributes:
        privacy: Of unit ``sample``; its clip is not used.
        secret: At least 16 bytes that nobody but the site knows.
        name: Of the description: the same secret, name and data give the same noise.
        release: Called before anything leaves with the noise multiplier, how the release is called in an account, and
            a hash of it.
    """

    privacy: Privacy
    secret: bytes
    name: str
    release: Callable[[float, str, str], None] = lambda sigma, run, made_of: None


class _Source(Protocol):
    """Counts and quantiles, exact or with noise."""

    @property
    def images(self) -> int:
        """Training images."""
        ...

    @property
    def patients(self) -> int | None:
        """Whose they are; None where that is not known, or can't be told."""
        ...

    @property
    def promise(self) -> Promise | None:
        """What noise guarantees; None for exact numbers."""
        ...

    @property
    def least(self) -> int:
        """Fewest images on each side of a quantile."""
        ...

    def tables(self) -> list[tuple[Table, list[int]]]:
        """Each table with its counts."""
        ...

    def quantiles(self, measure: Measure) -> tuple[int, list[float]] | None:
        """Of how many images, and the quantiles at `SHARES`; None where there can be none."""
        ...


def describe(measured: Measured, policy: Policy, noise: Noise | None = None) -> Description:
    """What a site tells.

    Args:
        measured: At the site.
        policy: The site's own.
        noise: None tells exact numbers.

    Raises:
        SettingsError: If the budget can't be reached.
        RefusedError: If the site's account refuses.
    """
    source: _Source = _Exact(measured, policy.min_count) if noise is None else _noised(measured, policy, noise)
    withheld = [f"{fact}: the site's file does not allow it" for fact in FACTS if fact not in policy.facts]
    about: Meta = {"objective": measured.objective.name, "min_count": policy.min_count, "promise": source.promise}
    if measured.objective.has_class_labels:
        about["classes"] = list(measured.data.classes)
    if "geometry" in policy.facts:
        about["shape"] = list(measured.data.shape)
        about["spacing"] = None if measured.spacing is None else list(measured.spacing)
    if min(source.images, source.images if source.patients is None else source.patients) < policy.min_count:
        withheld.append(f"all numbers: there are fewer than {policy.min_count} training images or patients")
        return Description(**about, withheld=withheld)
    if "size" in policy.facts:
        about |= {"images": source.images, "patients": source.patients}
    tables = [_shown(table, counts, policy) for table, counts in source.tables() if "label_counts" in policy.facts]
    withheld += [
        f"{table.title}: {table.counts.count(None)} of {len(table.counts)} counts, as one is below {policy.min_count}"
        for table in tables
        if None in table.counts
    ]
    measures = [measure for measure in measured.measures if measure.kind in policy.facts]
    known = {measure: quantiles for measure in measures if (quantiles := source.quantiles(measure)) is not None}
    numbers = [_shown_numbers(measure, *quantiles, source.least) for measure, quantiles in known.items()]
    if unknown := [measure.title for measure in measures if measure not in known]:
        withheld.append(
            f"{first_names(unknown, NAMED)}: nobody knows the range beforehand, so noise can't hide an image"
        )
    if cut := [each.title for each in numbers if None in each.quantiles]:
        withheld.append(f"quantiles with fewer than {source.least} images on a side, of {first_names(cut, NAMED)}")
    return Description(**about, tables=tables, numbers=numbers, withheld=withheld)


def _shown(table: Table, counts: list[int], policy: Policy) -> Counts:
    return Counts(title=table.title, names=list(table.names), counts=shown_counts(counts, policy.min_count))


def _shown_numbers(measure: Measure, images: int, quantiles: list[float], least: int) -> Numbers:
    levels = shown_levels(images, SHARES, least)
    shown = [
        float(f"{value:.{DIGITS}g}") if level in levels else None
        for level, value in zip(SHARES, quantiles, strict=True)
    ]
    return Numbers(title=measure.title, kind=measure.kind, span=measure.span, quantiles=shown)


@dataclass
class _Exact:
    """The numbers as they are."""

    measured: Measured
    least: int
    promise: None = None

    @property
    def images(self) -> int:
        return self.measured.images

    @property
    def patients(self) -> int | None:
        return self.measured.patients

    def tables(self) -> list[tuple[Table, list[int]]]:
        return [(table, table.counts) for table in self.measured.tables]

    def quantiles(self, measure: Measure) -> tuple[int, list[float]] | None:
        known = measure.values[~np.isnan(measure.values)]
        if not len(known):
            return 0, [0.0] * len(SHARES)
        return self._surely(len(known)), [float(value) for value in np.quantile(known, SHARES)]

    def _surely(self, known: int) -> int:
        """How many images there are at least with a number, as far as that may be told.

        Which quantiles are told must not tell how many images lack a number where these are few.
        """
        lacking = self.images - known
        return self.images - self.least + 1 if 0 < lacking < self.least else known


@dataclass
class _Noised:
    """Numbers made of noised counts."""

    images: int
    promise: Promise
    least: int
    counts: list[tuple[Table, list[int]]]
    histograms: dict[str, np.ndarray] = field(default_factory=dict)
    patients: None = None

    def tables(self) -> list[tuple[Table, list[int]]]:
        return self.counts

    def quantiles(self, measure: Measure) -> tuple[int, list[float]] | None:
        if measure.span is None:
            return None
        total = float(self.histograms[measure.title].sum())
        below = np.concatenate([[0.0], np.cumsum(self.histograms[measure.title])])
        # noise makes it fall here and there: between the two nearest that never do
        rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
        edges = np.linspace(*measure.span, BINS + 1)
        grows = np.concatenate([[True], np.diff(rising) > 0])
        wanted = np.asarray(SHARES) * rising[-1]
        return max(0, round(total)), [float(value) for value in np.interp(wanted, rising[grows], edges[grows])]


def _noised(measured: Measured, policy: Policy, noise: Noise) -> _Noised:
    """Count, noise all counts in one release, and have it written down."""
    tables = [table for table in measured.tables if table.public and "label_counts" in policy.facts]
    measures = [measure for measure in measured.measures if measure.span is not None and measure.kind in policy.facts]
    blocks = [np.array([measured.images])]
    blocks += [np.array(table.counts) for table in tables]
    blocks += [_histogram(measure) for measure in measures]
    exact = np.concatenate(blocks).astype(np.float64)
    sigma = noise_multiplier(noise.privacy, 1)
    deviation = sigma * math.sqrt(len(blocks))
    titles = [table.title for table in tables] + [measure.title for measure in measures]
    run = f"description {noise.name} of {hashlib.sha256(repr(titles).encode()).hexdigest()[:16]}"
    digest = hashlib.sha256(exact.tobytes()).hexdigest()
    draws = SecretStream(noise.secret, run, digest, f"{sigma!r}").normal((len(exact),)).numpy()
    noised = exact + deviation * draws
    noise.release(sigma, run, hashlib.sha256(noised.tobytes()).hexdigest())
    first, *parts = np.split(noised, np.cumsum([len(block) for block in blocks])[:-1])
    privacy = noise.privacy
    promise = Promise(
        adjacency=privacy.adjacency, epsilon=privacy.epsilon, delta=privacy.delta, deviation=round(deviation, 3)
    )
    counts = [
        (table, [max(0, round(float(count))) for count in part])
        for table, part in zip(tables, parts[: len(tables)], strict=True)
    ]
    named = {measure.title: part for measure, part in zip(measures, parts[len(tables) :], strict=True)}
    least = max(policy.min_count, math.ceil(CLEAR * deviation * math.sqrt(BINS / 2)))
    return _Noised(max(0, round(float(first[0]))), promise, least, counts, named)


def _histogram(measure: Measure) -> np.ndarray:
    """Images by the bin of their number; one without a number is in none."""
    known = measure.values[~np.isnan(measure.values)]
    return np.histogram(known, bins=BINS, range=measure.span)[0]
