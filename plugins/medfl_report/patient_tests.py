"""Significance tests over the test patients for the difference between two methods.

A confidence interval describes a difference; a difference counts as significant by the exchange test of
`medfl_report.statistics.exchange_models`. Runs with the same data have the same test patients, and their differences
are averaged patient by patient. The folds of one seed test different patients, and so do the sites. Data of different
seeds may share patients in an unknown way, so each seed is tested separately, and
`medfl_report.statistics.combine_p` combines the p-values.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from medfl.engine.runs.records import RunRecord
from medfl_report.predictions import PredictionSet, read_prediction_sets
from medfl_report.statistics import (
    LEVEL,
    ExchangeDistribution,
    Interval,
    can_decide,
    combine_p,
    exchange_models,
    mean_exchange,
)

PredictionSets = Mapping[str, PredictionSet]
"""Maps each site to its test set in one run."""

RANK_METRICS = ("auc", "macro_auc", "map", "c_index")
"""Metrics that depend only on the ranking of a model's predictions, as do ``auc_0``, ``auc_1``, ..."""

UNDEFINED = "not defined here"
"""Reason for a missing test: the metric can't be computed, such as the AUC of images of a single class."""

NO_PREDICTIONS = "no predictions"
"""Reason for a missing test: a run folder has no predictions."""
OTHER_IMAGES = "other test images"
"""Reason for a missing test: the two models have predictions for different test images."""
NO_NUMBERS = "a model gives no numbers"
"""Reason for a missing test: a prediction is NaN, for example after a diverged training."""


@dataclass(frozen=True)
class RunPair:
    """Two runs on the same data that are compared.

    Attributes:
        alone: Run of the reference, for example of local training.
        other: Run of the compared method.
    """

    alone: RunRecord
    other: RunRecord


@dataclass(frozen=True)
class PatientTest:
    """Result of a test over patients.

    Attributes:
        p: Two-sided p-value; None if there is no test.
        patients: Number of patients of the smallest test that was made; images if patients are not known.
        reason: Reason why there is no test; empty if there is one.
    """

    p: float | None = None
    patients: int = 0
    reason: str = ""

    @property
    def is_significant(self) -> bool:
        """True if the p-value is at most `medfl_report.statistics.LEVEL`."""
        return self.p is not None and self.p <= LEVEL

    @property
    def too_few(self) -> bool:
        """True if there is a test, but with so few patients that no result could be significant."""
        return self.p is not None and not can_decide(self.patients)


def sets_reader() -> Callable[[RunRecord], PredictionSets]:
    """Return a function that reads the test sets of a run, and caches them, so that each run is read once."""
    sets_by_folder: dict[Path, PredictionSets] = {}

    def sets_of(run: RunRecord) -> PredictionSets:
        if run.folder not in sets_by_folder:
            sets_by_folder[run.folder] = read_prediction_sets(run)
        return sets_by_folder[run.folder]

    return sets_of


def method_test(
    pairs: Sequence[tuple[RunRecord, RunRecord]], metric: str, sets_of: Callable[[RunRecord], PredictionSets]
) -> PatientTest:
    """Test the difference between two methods in the mean over the sites, for the models that the sites export.

    Args:
        pairs: Pairs (run of the method, run of its reference) on the same data.
        metric: Name of the metric.
        sets_of: Function that returns the test sets of a run, such as `sets_reader()`.
    """
    if not pairs:
        return PatientTest(reason=UNDEFINED)
    sites = sorted({site for run, _ in pairs for site in run.sites})
    return PatientTests(metric, [RunPair(base, run) for run, base in pairs], sets_of).over(sites)


def effect_over_runs(interval: Interval | None, test: PatientTest, words: tuple[str, str]) -> str:
    """Return the effect of a method over several runs, in words.

    Args:
        interval: Interval of the difference over the runs, in which larger is better; None if there is none.
        test: Test over the patients of these runs.
        words: Words for a positive and for a negative effect.

    Returns:
        One of `words` if the interval excludes 0 and the test is significant; the same with the addition
        "(seeds only)" if there is no test. Otherwise ``too few patients`` or ``n.s.``, or ``-`` without an interval.
    """
    if interval is None:
        return "-"
    if test.too_few:
        return "too few patients"
    if not interval.excludes_zero or not (test.p is None or test.is_significant):
        return "n.s."
    word = words[0] if interval.difference > 0 else words[1]
    return word if test.p is not None else f"{word} (seeds only)"


def is_rank_metric(metric: str) -> bool:
    """Return whether a metric depends only on the ranking of a model's predictions."""
    return metric in RANK_METRICS or metric.startswith("auc_")


def why_incomparable(before: PredictionSet | None, after: PredictionSet | None) -> str:
    """Return the reason why two models can't be compared patient by patient; an empty text if they can."""
    if before is None or after is None:
        return NO_PREDICTIONS
    if not before.same_images(after):
        return OTHER_IMAGES
    return "" if before.defined and after.defined else NO_NUMBERS


class PatientTests:
    """Exchange tests of the difference between two groups of runs in one metric, computed on demand and cached.

    Args:
        metric: Name of the metric.
        pairs: Pairs of runs, at least one.
        sets_of: Function that returns the test sets of a run, such as `sets_reader()`.
    """

    def __init__(self, metric: str, pairs: Sequence[RunPair], sets_of: Callable[[RunRecord], PredictionSets]) -> None:
        self._metric, self._sets_of = metric, sets_of
        self._families = _families(pairs)
        self._exchanges: dict[tuple[int, str, str], ExchangeDistribution | str] = {}

    def over(self, sites: Sequence[str]) -> PatientTest:
        """Test the mean difference over some sites for which both runs of a pair have a score, and over the data sets.

        Args:
            sites: Names of the sites.
        """
        tests = []
        for place, by_data in enumerate(self._families):
            parts: list[list[ExchangeDistribution]] = []
            for data, pairs in by_data.items():
                scored = [site for site in sites if all(self._is_scored(pair, site) for pair in pairs)]
                results = [self._exchange(place, data, site, pairs) for site in scored]
                reasons = [part for part in results if isinstance(part, str)]
                if reasons:
                    return PatientTest(reason=reasons[0])
                parts.append([part for part in results if isinstance(part, ExchangeDistribution)])
            parts = [part for part in parts if part]
            if not parts:
                return PatientTest(reason=UNDEFINED)
            weighted = [(1 / len(parts) / len(part), exchange) for part in parts for exchange in part]
            tests.append(weighted[0][1] if len(weighted) == 1 else mean_exchange(weighted))
        return PatientTest(combine_p([test.p for test in tests]), min(test.patients for test in tests))

    def _is_scored(self, pair: RunPair, site: str) -> bool:
        return all(run.score(site, self._metric) is not None for run in (pair.alone, pair.other))

    def _exchange(self, family: int, data: str, site: str, pairs: Sequence[RunPair]) -> ExchangeDistribution | str:
        """Return the cached exchanges of a site in one data set, or the reason why there are none."""
        key = (family, data, site)
        if key not in self._exchanges:
            self._exchanges[key] = self._compute_exchange(data, site, pairs)
        return self._exchanges[key]

    def _compute_exchange(self, data: str, site: str, pairs: Sequence[RunPair]) -> ExchangeDistribution | str:
        sides = []
        for pair in pairs:
            before, after = (self._sets_of(run).get(site) for run in (pair.alone, pair.other))
            reason = why_incomparable(before, after)
            if before is None or after is None or reason:
                return reason
            sides.append((before, after))
        first = sides[0][0]
        if not all(first.same_images(before) for before, _ in sides):
            return OTHER_IMAGES
        exchange = exchange_models(
            partial(first.objective.weighted_score, self._metric),
            [(after.predictions, before.predictions) for before, after in sides],
            first.targets,
            first.patients,
            seed=[zlib.crc32(data.encode()), zlib.crc32(site.encode())],
            order_only=is_rank_metric(self._metric),
        )
        return UNDEFINED if exchange is None else exchange


def _families(pairs: Sequence[RunPair]) -> list[dict[str, list[RunPair]]]:
    """Group the pairs by families of data sets, and within a family by data set.

    A family contains the seeds that use the same data sets. The data sets of a family are folds, which have no test
    patient in common.
    """
    by_seed: dict[int, list[RunPair]] = {}
    for pair in pairs:
        by_seed.setdefault(pair.other.seed, []).append(pair)
    families: dict[frozenset[str], dict[str, list[RunPair]]] = {}
    for same in by_seed.values():
        family = families.setdefault(frozenset(pair.other.data for pair in same), {})
        for pair in same:
            family.setdefault(pair.other.data, []).append(pair)
    return list(families.values())
