"""Differences between a federated method and local training, site by site, with intervals and tests.

For one pair of runs the interval is a bootstrap over the test patients. For several pairs, which differ in seed or
split, it is over the seeds and the patients, or over the splits, as in `medfl_report.compare`.

A group is a set of runs of one method that differ only in seed and fold. A site exports its personal model if the
method trains one, else the global model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from medfl.metrics import LOWER_IS_BETTER_METRICS, UNBOUNDED_METRICS, worst
from medfl.utils.formats import count, none_if_nan
from medfl_report.groups import Group, split_ratio
from medfl_report.patient_tests import (
    UNDEFINED,
    PatientTest,
    PatientTests,
    PredictionSets,
    RunPair,
    compare_methods,
    why_incomparable,
)
from medfl_report.predictions import PredictionSet
from medfl_report.statistics import LEVEL, Interval, holm, mean_std

BETTER, WORSE, NO_CLEAR_DIFFERENCE = "better", "worse", "no clear difference"
"""Effects of a method on a site's score: a significant improvement, a significant decline, or neither."""

TOO_FEW_PATIENTS = "too few patients for a test"
"""Effect if no test on that many patients can reach the significance level."""

TOO_FEW_RUNS = "too few runs for a test"
"""Effect if there are fewer runs than a claim needs."""


@dataclass(frozen=True)
class ComparisonRow:
    """A row of a comparison: one site or centre, the mean over the sites, or the worst site.

    Attributes:
        name: Name of the site, or of the row.
        images: Number of test images, over all folds; None in a row that is not about one site.
        alone: Score of the reference: local training, or another method.
        other: Score of the model that the site exports from the compared method.
        difference: other - alone; None if it is not known.
        low: Lower end of the difference's 95 % confidence interval; None without an interval.
        high: Upper end of the interval.
        by_run: Difference in each pair of runs, which differ in seed or fold.
        effect: `BETTER`, `WORSE`, `NO_CLEAR_DIFFERENCE`, `TOO_FEW_PATIENTS`, `TOO_FEW_RUNS`, or the reason why there is
            no test.
        left: Number of pairs of runs that are left out, because the metric is not defined in them.
        patients: Number of test patients; None if each image counts as one, and in a row that is not about one site.
        p: Two-sided p-value of the test over patients; None without a test.
        p_claim: P-value of the effect: the largest of the tests over patients and over runs; None without a test.
    """

    name: str
    images: int | None
    alone: float | None
    other: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    by_run: tuple[float, ...] = ()
    effect: str = ""
    left: int = 0
    patients: int | None = None
    p: float | None = None
    p_claim: float | None = None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the difference over the runs; None for a single run."""
        return mean_std(self.by_run)[1] if self.by_run else None


@dataclass(frozen=True)
class Comparison:
    """Comparison of a group of runs with a reference by one metric.

    Attributes:
        metric: Name of the metric.
        name: Label of the group.
        rows: One row for each site or centre.
        mean: Mean over the rows.
        worst: Worst site of the reference and of the group; these can be different sites.
    """

    metric: str
    name: str
    rows: list[ComparisonRow]
    mean: ComparisonRow
    worst: ComparisonRow

    @property
    def lines(self) -> list[ComparisonRow]:
        """All rows in the order of the table: sites, mean, worst site."""
        return [*self.rows, self.mean, self.worst]

    def count(self, effect: str) -> int:
        """Return the number of sites with an effect."""
        return sum(row.effect == effect for row in self.rows)

    @property
    def reach(self) -> float:
        """Absolute value at both ends of the figure's axis around 0: a round number, at most 1 for scores in [0, 1]."""
        return axis_reach(self.metric, (*self.rows, self.mean))


def axis_reach(metric: str, rows: Iterable[ComparisonRow]) -> float:
    """Return the round number to which an axis around 0 must extend to show all differences and intervals."""
    ends = [abs(end) for row in rows for end in (row.low, row.high, row.difference) if end]
    return min(math.inf if metric in UNBOUNDED_METRICS else 1.0, _round_up(max(ends, default=0.1)))


def pair_up(alone: Group, other: Group) -> list[RunPair]:
    """Pair each run with a reference run on the same data, of the same seed if there is one.

    Args:
        alone: Runs of the reference.
        other: Runs to pair. A run without a reference run on the same data is left out.
    """
    pairs = []
    for run in other.runs:
        references = [reference for reference in alone.runs if reference.data == run.data]
        if references:
            same_seed = [reference for reference in references if reference.seed == run.seed]
            pairs.append(RunPair((same_seed or references)[0], run))
    return pairs


def compare_sites(metric: str, name: str, pairs: Sequence[RunPair], tested: Mapping[str, PredictionSets]) -> Comparison:
    """Compare a group with its reference at each site.

    With one pair the intervals are paired bootstraps over the test patients. With several pairs they are over the
    runs (`compare_over_runs`).

    Args:
        metric: Name of the metric.
        name: Label of the group.
        pairs: At least one pair. If there are several, a site must contain the same people in all of them.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.
    """
    if len(pairs) > 1:
        return compare_over_runs(metric, name, pairs, tested)
    (pair,) = pairs
    sites = sorted(pair.other.sites)
    tests = PatientTests(metric, pairs, lambda run: tested[str(run.folder)])
    rows = [_site_row(metric, site, pair, tested, tests) for site in sites]
    mean = mean_row(metric, rows, tests.over(sites))
    return Comparison(metric, name, correct_family(rows), mean, worst_row(metric, rows))


def compare_over_runs(
    metric: str, name: str, pairs: Sequence[RunPair], tested: Mapping[str, PredictionSets]
) -> Comparison:
    """Compare a group with its reference at each site over several seeds or folds.

    Args:
        metric: Name of the metric.
        name: Label of the group.
        pairs: At least two pairs; a site must contain the same people in all of them.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.
    """
    sites = sorted({site for pair in pairs for site in pair.other.sites})
    scores = {site: _score_pairs(metric, site, pairs) for site in sites}
    ratio = split_ratio([pair.other for pair in pairs])
    tests = PatientTests(metric, pairs, lambda run: tested[str(run.folder)])
    rows = []
    for site, by_pair in scores.items():
        images, patients = _count_images(site, pairs, tested)
        row = ComparisonRow(site, images, None, None, patients=patients)
        rows.append(_row_of_scores(metric, row, by_pair, ratio, len(pairs), tests.over([site])))
    means = {
        place: (mean_of[0], mean_of[1])
        for place in range(len(pairs))
        if (defined := [site[place] for site in scores.values() if place in site])
        and (mean_of := [sum(side) / len(defined) for side in zip(*defined, strict=True)])
    }
    empty = ComparisonRow("mean of sites", None, None, None)
    mean = _row_of_scores(metric, empty, means, ratio, len(means), tests.over(sites))
    return Comparison(metric, name, correct_family(rows), mean, worst_row(metric, rows))


ScorePairs = Mapping[int, tuple[float, float]]
"""Mapping from the index of a pair of runs to (score of the reference, score of the compared method).

Pairs in which a score is not defined are left out.
"""


def _score_pairs(metric: str, site: str, pairs: Sequence[RunPair]) -> ScorePairs:
    scores = {}
    for place, pair in enumerate(pairs):
        alone, other = pair.alone.score(site, metric), pair.other.score(site, metric)
        if alone is not None and other is not None:
            scores[place] = (alone, other)
    return scores


def _count_images(
    site: str, pairs: Sequence[RunPair], tested: Mapping[str, PredictionSets]
) -> tuple[int | None, int | None]:
    """Return the numbers of test images and patients of a site in all folds; None if they are not known."""
    sets = {
        pair.other.data: test_set
        for pair in pairs
        if (test_set := tested[str(pair.other.folder)].get(site)) is not None
    }.values()
    patients = [test_set.patient_count for test_set in sets if test_set.patient_count is not None]
    images = sum(len(test_set.rows) for test_set in sets) if sets else None
    return images, sum(patients) if patients and len(patients) == len(sets) else None


def _row_of_scores(
    metric: str, row: ComparisonRow, scores: ScorePairs, ratio: float | None, runs: int, test: PatientTest
) -> ComparisonRow:
    """Fill a row with the means of its scores, and with the interval over the runs."""
    alone, other = (mean_known(both[side] for both in scores.values()) for side in (0, 1))
    by_run = tuple(both[1] - both[0] for both in scores.values())
    if not by_run:
        return replace(row, alone=alone, other=other, effect=UNDEFINED, left=runs)
    filled = replace(row, alone=alone, other=other, by_run=by_run, left=runs - len(by_run))
    return row_over_runs(metric, filled, ratio, test)


def row_over_runs(metric: str, row: ComparisonRow, ratio: float | None, test: PatientTest) -> ComparisonRow:
    """Add the mean difference, its interval over the runs (Student's t), the p-value and the effect to a row.

    A row is better or worse if the tests over the runs and over the patients are significant
    (`medfl_report.patient_tests.compare_methods`).

    Args:
        metric: Name of the metric.
        row: Row with at least one difference in `ComparisonRow.by_run`.
        ratio: Size of a test set divided by the number of all other images, if the runs have different splits; else
            None (`medfl_report.groups.split_ratio`).
        test: Test of the mean difference over patients.
    """
    row = replace(row, difference=mean_known(row.by_run), low=None, high=None)
    if test.too_few:
        return replace(row, p=test.p, effect=TOO_FEW_PATIENTS)
    comparison = compare_methods(row.by_run, ratio, test)
    interval = comparison.over_runs.interval
    if interval is None:
        reason = "the same in all runs" if len(row.by_run) > 1 else f"defined in {count(1, 'run')} only"
        return replace(row, effect=f"no interval: {reason}")
    row = replace(row, low=interval.low, high=interval.high)
    if test.p is None:
        return add_patient_test(metric, row, interval, test)
    if comparison.too_few_runs:
        return replace(row, p=test.p, effect=TOO_FEW_RUNS)
    effect = _direction(metric, interval.difference) if comparison.p <= LEVEL else NO_CLEAR_DIFFERENCE
    return replace(row, p=test.p, effect=effect, p_claim=comparison.p)


def correct_family(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Adjust the p-values of a family of rows by Holm's procedure, and withdraw the claims that do not remain.

    Args:
        rows: The sites of one table, or the methods of one table.

    Returns:
        The rows with adjusted values in `ComparisonRow.p_claim`.
    """
    adjusted = holm([math.nan if row.p_claim is None else row.p_claim for row in rows])
    return [_withdraw(row, p) for row, p in zip(rows, adjusted, strict=True)]


def _withdraw(row: ComparisonRow, p: float) -> ComparisonRow:
    """Return the row with its adjusted p-value, and without a claim that it does not support."""
    if math.isnan(p):
        return row
    is_claim = row.effect.split(" (")[0] in (BETTER, WORSE)
    return replace(row, p_claim=p, effect=NO_CLEAR_DIFFERENCE if is_claim and p > LEVEL else row.effect)


def worst_row(metric: str, rows: Sequence[ComparisonRow], place: str = "site") -> ComparisonRow:
    """Return the row with the worst site of the reference and of the group, among the rows that have both scores.

    Args:
        metric: Name of the metric.
        rows: Rows of the sites or centres.
        place: Word for the subject of a row.
    """
    both = [row for row in rows if row.alone is not None and row.other is not None]
    alone, other = (worst(metric, [getattr(row, side) for row in both]) for side in ("alone", "other"))
    return ComparisonRow(f"worst {place}", None, none_if_nan(alone), none_if_nan(other), none_if_nan(other - alone))


def mean_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if all are."""
    defined = [value for value in values if value is not None]
    return math.fsum(defined) / len(defined) if defined else None


def mean_interval(intervals: Sequence[Interval]) -> Interval:
    """Return the mean of independent differences, such as differences at sites, with an interval.

    The distance from the mean to an end of its interval is the root of the sum of the squared distances of the single
    intervals, divided by their number: K equal intervals give an interval that is sqrt(K) times narrower.

    Source: Zou and Donner 2008, Construction of confidence limits about effect measures: a general approach.

    Args:
        intervals: At least one.
    """
    number = len(intervals)
    centre = math.fsum(interval.difference for interval in intervals) / number
    below = math.hypot(*(interval.difference - interval.low for interval in intervals)) / number
    above = math.hypot(*(interval.high - interval.difference for interval in intervals)) / number
    return Interval(centre, centre - below, centre + above)


def _site_row(
    metric: str, site: str, pair: RunPair, tested: Mapping[str, PredictionSets], tests: PatientTests
) -> ComparisonRow:
    """Return the row of a site for one pair of runs."""
    alone, other = pair.alone.score(site, metric), pair.other.score(site, metric)
    sets = [tested[str(run.folder)].get(site) for run in (pair.alone, pair.other)]
    present = [test_set for test_set in sets if test_set is not None]
    images = max((len(test_set.rows) for test_set in present), default=None)
    if images is None and alone is None and other is None:
        return ComparisonRow(site, None, None, None, effect="no test images")
    difference = None if alone is None or other is None else other - alone
    interval, reason = paired(metric, *sets)
    if interval is None:
        return ComparisonRow(site, images, alone, other, difference, effect=reason)
    row = ComparisonRow(site, images, alone, other, interval.difference, by_run=(interval.difference,))
    row = add_patient_test(metric, row, interval, tests.over([site]))
    counts = [test_set.patient_count for test_set in present]
    return replace(row, patients=max((number for number in counts if number is not None), default=None))


def paired(metric: str, before: PredictionSet | None, after: PredictionSet | None) -> tuple[Interval | None, str]:
    """Return the difference after - before with its interval over the patients, or None and the reason.

    Args:
        metric: Name of the metric.
        before: Test set under the model of the reference.
        after: Test set under the compared model.
    """
    reason = why_incomparable(before, after)
    if before is None or after is None or reason:
        return None, f"no interval: {reason}"
    interval = after.gain_over(before, metric)
    return interval, "" if interval else UNDEFINED


def mean_row(metric: str, rows: Sequence[ComparisonRow], test: PatientTest, place: str = "site") -> ComparisonRow:
    """Return the mean of the rows that have both scores, each with the same weight.

    Args:
        metric: Name of the metric.
        rows: Rows of one pair of runs. The mean has an interval if each row has one.
        test: Test of the mean difference over patients.
        place: Word for the subject of a row.
    """
    name = f"mean of {place}s"
    used = [row for row in rows if row.alone is not None and row.other is not None]
    alone, other = (mean_known(getattr(row, side) for row in used) for side in ("alone", "other"))
    difference = None if alone is None or other is None else other - alone
    if difference is None or any(row.p is None for row in used):
        return ComparisonRow(name, None, alone, other, difference, effect=f"no test at every {place}" if used else "")
    by_run = tuple(math.fsum(values) / len(values) for values in zip(*(row.by_run for row in used), strict=True))
    parts = [
        Interval(row.difference, row.low, row.high)
        for row in used
        if row.difference is not None and row.low is not None and row.high is not None
    ]
    interval = mean_interval(parts) if len(parts) == len(used) else None
    return add_patient_test(metric, ComparisonRow(name, None, alone, other, difference, by_run=by_run), interval, test)


def add_patient_test(metric: str, row: ComparisonRow, interval: Interval | None, test: PatientTest) -> ComparisonRow:
    """Add an interval over patients, the p-value and the effect to a row.

    A row is better or worse if the test over patients is significant. With too few patients for any significant
    result, the interval is left out as well: a bootstrap of so few patients is far too narrow.

    Args:
        metric: Name of the metric.
        row: Row with its difference.
        interval: Interval of the difference. It describes the difference; the effect does not depend on it.
        test: Test of the difference over patients.
    """
    if test.too_few:
        return replace(row, low=None, high=None, p=test.p, effect=TOO_FEW_PATIENTS)
    if interval is not None:
        row = replace(row, low=interval.low, high=interval.high)
    if test.p is None:
        return replace(row, effect=UNDEFINED if test.reason == UNDEFINED else f"no test: {test.reason}")
    effect = _direction(metric, row.difference or 0.0) if test.is_significant else NO_CLEAR_DIFFERENCE
    return replace(row, p=test.p, effect=effect, p_claim=test.p)


def _direction(metric: str, difference: float) -> str:
    return BETTER if (difference > 0) != (metric in LOWER_IS_BETTER_METRICS) else WORSE


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 1.5, 2, 3, 4, 5, 6, 8 or 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 0.1
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-9))
