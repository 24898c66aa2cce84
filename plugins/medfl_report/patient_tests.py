"""Significance tests over the test patients for the difference between two methods.

`medfl_report.statistics.procedures` decides between the exchange test and the bootstrap. Runs with the same data have
the same test patients, and their differences are averaged patient by patient. The folds of one seed test different
patients, and so do the sites. Data of different seeds may share patients in an unknown way, so each seed is tested
separately, and `medfl_report.statistics.combine_p` combines the p-values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch

from medfl.engine.runs.records import RunRecord
from medfl_report.predictions import PredictionSet, read_prediction_sets
from medfl_report.statistics import (
    LEVEL,
    ExchangeDistribution,
    PatientBootstrap,
    RunsTest,
    ScoreFunction,
    can_decide,
    choose_for_models,
    choose_over_runs,
    combine_p,
    exchange_models,
    mean_bootstrap,
    mean_exchange,
    resample_differences,
    runs_test,
    seeds_and_patients_test,
)
from medfl_report.statistics.procedures import (
    MIN_SEEDS,
    PATIENT_BOOTSTRAP,
    SEEDS_AND_PATIENTS,
    TOO_FEW_SEEDS,
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
        variance: Variance of the difference from the choice of patients, if all runs have the same test patients; else
            None.
    """

    p: float | None = None
    patients: int = 0
    reason: str = ""
    variance: float | None = None

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


@dataclass(frozen=True)
class MethodTest:
    """Test of a difference between two methods, over the runs and over the patients.

    Attributes:
        over_runs: Interval and p-value over the runs: over seeds and patients, over splits, or over seeds alone.
        over_patients: Test over the patients of these runs.
        runs: Number of pairs of runs.
    """

    over_runs: RunsTest = RunsTest()
    over_patients: PatientTest = PatientTest(reason=NO_PREDICTIONS)
    runs: int = 0

    @property
    def p(self) -> float:
        """Two-sided p-value of the claim, the larger of the two tests' values; NaN if no claim is possible."""
        if math.isnan(self.over_runs.p) or self.over_patients.too_few or self.too_few_runs:
            return math.nan
        return max(self.over_runs.p, self.over_patients.p or 0.0)

    @property
    def too_few_runs(self) -> bool:
        """True if there are fewer runs than a claim needs."""
        return choose_over_runs(self.runs, has_own_splits=False, has_patients=False) is TOO_FEW_SEEDS

    def effect(self, words: tuple[str, str], p: float) -> str:
        """Return the effect in words.

        Args:
            words: Words for a positive and for a negative difference.
            p: P-value of the claim, adjusted for the family of comparisons.

        Returns:
            One of `words` if the p-value is significant; the same with the addition "(seeds only)" if there is no test
            over patients. Otherwise ``too few patients``, ``too few runs`` or ``n.s.``, or ``-`` without an interval.
        """
        if self.over_runs.interval is None:
            return "-"
        if self.over_patients.too_few:
            return "too few patients"
        if self.too_few_runs:
            return "too few runs"
        if not p <= LEVEL:
            return "n.s."
        word = words[0] if self.over_runs.interval.difference > 0 else words[1]
        return word if self.over_patients.p is not None else f"{word} (seeds only)"


def compare_methods(differences: Sequence[float], ratio: float | None, over_patients: PatientTest) -> MethodTest:
    """Test the mean of paired differences over runs by the procedure for their number and kind.

    Args:
        differences: One difference for each pair of runs.
        ratio: Size of a test set divided by the number of all other images, if the runs have different splits; None if
            all have the same split (`medfl_report.groups.split_ratio`).
        over_patients: Test over the patients of these runs.
    """
    variance, runs = over_patients.variance, len(differences)
    procedure = choose_over_runs(max(runs, MIN_SEEDS), ratio is not None, variance is not None)
    if procedure is SEEDS_AND_PATIENTS and variance is not None:
        over_runs = seeds_and_patients_test(differences, variance, over_patients.patients)
    else:
        over_runs = runs_test(differences, ratio)
    return MethodTest(over_runs, over_patients, runs)


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


@dataclass(frozen=True)
class SiteModels:
    """Pairs of models on the test images of one site.

    Attributes:
        score: Function that computes the metric.
        pairs: Predictions of the compared method and of the reference, (N, K) each, for each repetition.
        targets: Targets, (N, ...).
        patients: Patient number of each image, (N,), int64; None if each image counts as one patient.
        seed: Seed of the exchanges and resamples.
        order_only: True if the metric depends only on the ranking of a model's predictions.
        resamples: Number of bootstrap resamples.
    """

    score: ScoreFunction
    pairs: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    targets: torch.Tensor
    patients: torch.Tensor | None
    seed: tuple[int, int]
    order_only: bool
    resamples: int = 2000

    @property
    def patient_count(self) -> int:
        """Number of patients; images if patients are not known."""
        return len(self.targets) if self.patients is None else len(self.patients.unique())

    @cached_property
    def exchange(self) -> ExchangeDistribution | None:
        """Differences after exchanges of patients; None if the metric is not defined."""
        return exchange_models(self.score, self.pairs, self.targets, self.patients, self.seed, self.order_only)

    @cached_property
    def bootstrap(self) -> PatientBootstrap | None:
        """Differences in resamples of patients; None if the metric is not defined."""
        return resample_differences(self.score, self.pairs, self.targets, self.patients, self.seed, self.resamples)


class PatientTests:
    """Tests over patients of the difference between two groups of runs in one metric, computed on demand and cached.

    Args:
        metric: Name of the metric.
        pairs: Pairs of runs, at least one.
        sets_of: Function that returns the test sets of a run, such as `sets_reader()`.
    """

    def __init__(self, metric: str, pairs: Sequence[RunPair], sets_of: Callable[[RunRecord], PredictionSets]) -> None:
        self._metric, self._sets_of = metric, sets_of
        self._families = _families(pairs)
        self._models: dict[tuple[int, str, str], SiteModels | str] = {}

    def over(self, sites: Sequence[str]) -> PatientTest:
        """Test the mean difference over some sites for which both runs of a pair have a score, and over the data sets.

        Args:
            sites: Names of the sites.
        """
        tests = []
        for place, by_data in enumerate(self._families):
            parts: list[list[SiteModels]] = []
            for data, pairs in by_data.items():
                scored = [site for site in sites if all(self._is_scored(pair, site) for pair in pairs)]
                results = [self._models_of(place, data, site, pairs) for site in scored]
                reasons = [part for part in results if isinstance(part, str)]
                if reasons:
                    return PatientTest(reason=reasons[0])
                parts.append([part for part in results if isinstance(part, SiteModels)])
            parts = [part for part in parts if part]
            if not parts:
                return PatientTest(reason=UNDEFINED)
            weighted = [(1 / len(parts) / len(part), models) for part in parts for models in part]
            test = compare_models(weighted)
            if test.p is None:
                return test
            tests.append(test)
        if len(tests) == 1:
            is_one_split = len(self._families[0]) == 1
            return tests[0] if is_one_split else replace(tests[0], variance=None)
        p = combine_p([test.p for test in tests if test.p is not None])
        return PatientTest(p, min(test.patients for test in tests))

    def _is_scored(self, pair: RunPair, site: str) -> bool:
        return all(run.score(site, self._metric) is not None for run in (pair.alone, pair.other))

    def _models_of(self, family: int, data: str, site: str, pairs: Sequence[RunPair]) -> SiteModels | str:
        """Return the cached models of a site in one data set, or the reason why these can't be compared."""
        key = (family, data, site)
        if key not in self._models:
            self._models[key] = self._read_models(data, site, pairs)
        return self._models[key]

    def _read_models(self, data: str, site: str, pairs: Sequence[RunPair]) -> SiteModels | str:
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
        return SiteModels(
            score=partial(first.objective.weighted_score, self._metric),
            pairs=tuple((after.predictions, before.predictions) for before, after in sides),
            targets=first.targets,
            patients=first.patients,
            seed=(zlib.crc32(data.encode()), zlib.crc32(site.encode())),
            order_only=is_rank_metric(self._metric),
        )


def compare_models(weighted: Sequence[tuple[float, SiteModels]], seed: int = 0) -> PatientTest:
    """Test the weighted mean of the differences at several sites, by the procedure for the numbers of patients.

    Args:
        weighted: Pairs (weight, models), at least one; each site has its own seed.
        seed: Seed of the draws from sites whose exchanges are all known.
    """
    procedure = choose_for_models([models.patient_count for _, models in weighted])
    if procedure is PATIENT_BOOTSTRAP:
        bootstraps = [(weight, models.bootstrap) for weight, models in weighted]
        resampled = [(weight, part) for weight, part in bootstraps if part is not None]
        if len(resampled) < len(bootstraps):
            return PatientTest(reason=UNDEFINED)
        mean = mean_bootstrap(resampled)
        return PatientTest(mean.p, mean.patients, variance=mean.variance)
    exchanges = [(weight, models.exchange) for weight, models in weighted]
    exchanged = [(weight, part) for weight, part in exchanges if part is not None]
    if len(exchanged) < len(exchanges):
        return PatientTest(reason=UNDEFINED)
    exchange = exchanged[0][1] if len(exchanged) == 1 else mean_exchange(exchanged, seed)
    variance = None if math.isnan(exchange.variance) else exchange.variance
    return PatientTest(exchange.p, exchange.patients, variance=variance)


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
