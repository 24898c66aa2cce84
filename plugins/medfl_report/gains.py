"""Who gains: for each site the score of its own training alone against that of a federation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from medfl.metrics import LOWER_IS_BETTER, UNBOUNDED, worst
from medfl.utils.formats import known
from medfl_report.groups import Group
from medfl_report.patient_tests import UNDEFINED, Pair, PatientTest, PatientTests, Sets, why_incomparable
from medfl_report.predictions import Tested
from medfl_report.statistics import Interval, mean_std

GAINS, LOSES, UNCLEAR = "gains", "loses", "no clear difference"
"""Verdicts on a site that trains with others: claimed differences, and differences that chance may explain."""

TOO_FEW = "too few test images to tell"
"""Verdict where no predictions on that many images could be claimed to differ."""


@dataclass(frozen=True)
class Gain:
    """A row of the table: one site, the mean over the sites, or the worst site.

    Attributes:
        name: Of the site, or of the row.
        images: Test images, of all folds together; None in a row that is no site's.
        patients: Their patients; None where each image counts as one, and in a row that is no site's.
        alone: Score of the site's own training.
        other: Score of the model that the site takes home from the other method.
        difference: other - alone, or None if it is not known.
        low: Lower end of its 95 % interval.
        high: Upper end.
        by_run: The difference of each run, which differ in seed or fold.
        verdict: `GAINS`, `LOSES`, `UNCLEAR`, `TOO_FEW`, or the reason why there is no test.
        left: Runs in which the metric is not defined; they count nowhere.
        p: Two-sided p-value of the test over patients on which the verdict is based; None without a test.
    """

    name: str
    images: int | None
    alone: float | None
    other: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    by_run: tuple[float, ...] = ()
    verdict: str = ""
    left: int = 0
    patients: int | None = None
    p: float | None = None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the difference over the runs, if there are several."""
        return mean_std(self.by_run)[1] if self.by_run else None


@dataclass(frozen=True)
class Comparison:
    """A group of runs against the sites alone, by one metric.

    Attributes:
        metric: Its name.
        name: Of the group.
        rows: One for each site.
        mean: Over the sites.
        worst: The worst site of either side; they need not be the same site.
    """

    metric: str
    name: str
    rows: list[Gain]
    mean: Gain
    worst: Gain

    @property
    def lines(self) -> list[Gain]:
        """All rows, the sites first."""
        return [*self.rows, self.mean, self.worst]

    def count(self, verdict: str) -> int:
        """Number of sites with a verdict."""
        return sum(row.verdict == verdict for row in self.rows)

    @property
    def reach(self) -> float:
        """How far the picture must reach to both sides of 0: a round number, at most 1 for scores in [0, 1]."""
        ends = [abs(end) for row in (*self.rows, self.mean) for end in (row.low, row.high, row.difference) if end]
        return min(math.inf if self.metric in UNBOUNDED else 1.0, _round_up(max(ends, default=0.1)))


def pair_up(alone: Group, other: Group) -> list[Pair]:
    """For each run one of the sites alone on the same data, of the same seed if there is one; left out if none is."""
    pairs = []
    for run in other.runs:
        rivals = [rival for rival in alone.runs if rival.data == run.data]
        if rivals:
            pairs.append(Pair(next((rival for rival in rivals if rival.seed == run.seed), rivals[0]), run))
    return pairs


def compare_sites(metric: str, name: str, pairs: Sequence[Pair], tested: Mapping[str, Sets]) -> Comparison:
    """Compare a group with the sites alone, by the images of each site's test set.

    Args:
        metric: Its name.
        name: Of the group.
        pairs: At least one, not of several folds, which test other images: see `medfl_report.sections.gains`.
        tested: Run folder, as text, to its test sets.
    """
    sites = sorted({site for pair in pairs for site in pair.other.sites})
    tests = PatientTests(metric, pairs, lambda run: tested[str(run.folder)])
    rows = [_site(metric, site, pairs, tested, tests) for site in sites]
    mean = mean_row(metric, rows, tests.over(sites))
    return Comparison(metric, name, rows, mean, worst_row(metric, rows))


def worst_row(metric: str, rows: Sequence[Gain], place: str = "site") -> Gain:
    """The worst site, or other place, of either side, of those that have both scores."""
    both = [row for row in rows if row.alone is not None and row.other is not None]
    alone, other = (worst(metric, [getattr(row, side) for row in both]) for side in ("alone", "other"))
    return Gain(f"worst {place}", None, known(alone), known(other), known(other - alone))


def mean_known(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are there; None without any."""
    defined = [value for value in values if value is not None]
    return math.fsum(defined) / len(defined) if defined else None


def mean_interval(intervals: Sequence[Interval]) -> Interval:
    """Mean of independent differences, such as those of sites, with an interval from theirs.

    The distances from a mean to the ends of its interval are the root of the sum of the squares of the single ones,
    over their number: K alike intervals give one that is sqrt(K) times narrower.

    Source: Zou and Donner 2008, Construction of confidence limits about effect measures: a general approach.

    Args:
        intervals: At least one.
    """
    count = len(intervals)
    centre = math.fsum(interval.difference for interval in intervals) / count
    below = math.hypot(*(interval.difference - interval.low for interval in intervals)) / count
    above = math.hypot(*(interval.high - interval.difference for interval in intervals)) / count
    return Interval(centre, centre - below, centre + above)


def _site(metric: str, site: str, pairs: Sequence[Pair], tested: Mapping[str, Sets], tests: PatientTests) -> Gain:
    alone = mean_known(pair.alone.score(site, metric) for pair in pairs)
    other = mean_known(pair.other.score(site, metric) for pair in pairs)
    sets = [(tested[str(pair.alone.folder)].get(site), tested[str(pair.other.folder)].get(site)) for pair in pairs]
    images = max((len(test_set.rows) for both in sets for test_set in both if test_set is not None), default=None)
    if images is None and alone is None and other is None:
        return Gain(site, None, None, None, verdict="no test images")
    plain = None if alone is None or other is None else other - alone
    intervals, reason = [], ""
    for before, after in sets:
        interval, why = paired(metric, before, after)
        reason = reason or why
        intervals += [interval] if interval is not None else []
    if reason:
        return Gain(site, images, alone, other, plain, verdict=reason)
    counts = [test_set.patient_count for both in sets for test_set in both if test_set is not None]
    row = gain_row(metric, site, images, (alone, other), intervals, tests.over([site]))
    return replace(row, patients=max((count for count in counts if count is not None), default=None))


def paired(metric: str, before: Tested | None, after: Tested | None) -> tuple[Interval | None, str]:
    """Return the difference after - before with its interval over the patients, or the reason why there is none."""
    reason = why_incomparable(before, after)
    if before is None or after is None or reason:
        return None, f"no interval: {reason}"
    interval = after.gain_over(before, metric)
    return interval, "" if interval else UNDEFINED


def mean_row(metric: str, rows: Sequence[Gain], test: PatientTest, place: str = "site") -> Gain:
    """Compute the mean over those rows that have both scores, each with the same weight.

    Args:
        metric: Name of the metric.
        rows: The rows. The mean has an interval if each of them has one.
        test: Test of the mean over patients.
        place: What a row is about.
    """
    name = f"mean of {place}s"
    used = [row for row in rows if row.alone is not None and row.other is not None]
    alone, other = (mean_known(getattr(row, side) for row in used) for side in ("alone", "other"))
    plain = None if alone is None or other is None else other - alone
    if plain is None or any(row.p is None for row in used):
        return Gain(name, None, alone, other, plain, verdict=f"no test at every {place}" if used else "")
    by_run = tuple(fmean(values) for values in zip(*(row.by_run for row in used), strict=True))
    parts = [
        Interval(row.difference, row.low, row.high)
        for row in used
        if row.difference is not None and row.low is not None and row.high is not None
    ]
    interval = mean_interval(parts) if len(parts) == len(used) else None
    return tested_row(metric, Gain(name, None, alone, other, plain, by_run=by_run), interval, test)


def gain_row(
    metric: str,
    name: str,
    images: int | None,
    sides: tuple[float | None, float | None],
    intervals: Sequence[Interval],
    test: PatientTest,
) -> Gain:
    """Compute the row of a site from its intervals in one or several seeds, of which it shows the mean.

    Args:
        metric: Name of the metric.
        name: Name of the row.
        images: Number of test images, the same in each seed.
        sides: Scores alone and with the other method.
        intervals: The difference in each seed, at least one.
        test: Test of the mean difference over patients.
    """
    mean = Interval(
        *(fmean(getattr(interval, part) for interval in intervals) for part in ("difference", "low", "high"))
    )
    by_run = tuple(interval.difference for interval in intervals)
    return tested_row(metric, Gain(name, images, *sides, mean.difference, by_run=by_run), mean, test)


def tested_row(metric: str, row: Gain, interval: Interval | None, test: PatientTest) -> Gain:
    """Add an interval and a verdict to a row.

    A row gains or loses if the test over patients claims a difference, and that of each run has the same sign. With
    too few patients for any claim there is no interval either: a bootstrap of so few is far too narrow.

    Args:
        metric: Name of the metric.
        row: A row with its difference.
        interval: Interval of the difference, which describes it and decides nothing.
        test: Test of the difference over patients.
    """
    if test.too_few:
        return replace(row, p=test.p, verdict=TOO_FEW)
    if interval is not None:
        row = replace(row, low=interval.low, high=interval.high)
    if test.p is None:
        return replace(row, verdict=UNDEFINED if test.reason == UNDEFINED else f"no test: {test.reason}")
    verdict = UNCLEAR
    if test.decides and _agree(row.by_run):
        verdict = GAINS if ((row.difference or 0.0) > 0) != (metric in LOWER_IS_BETTER) else LOSES
    return replace(row, p=test.p, verdict=verdict)


def _agree(differences: Sequence[float]) -> bool:
    """Whether all are on one side of 0."""
    return len({difference > 0 for difference in differences}) == 1


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 0.1
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-9))
