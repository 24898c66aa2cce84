"""Every estimate, interval and test of the results pages, computed from raw results.

This is the only module of the pages that chooses an interval or a test: it calls `medfl_report`, and templates and
tables receive an `Estimate`. Each row of a study is a method with settings.

Two questions have different intervals. If all seeds have the same test images, an interval over patients answers how a
score would differ on other patients. If each seed has its own partition, an interval over seeds answers how it would
differ with another seed, and a test over patients covers the choice of patients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from statistics import NormalDist, fmean
from typing import Any

import torch
import yaml

from medfl.engine.runs.records import RunRecord
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.metrics import worst
from medfl.plugins import Registry, load_plugins
from medfl.privacy.gaussian import epsilon
from medfl.privacy.release import ImageRelease
from medfl.utils.formats import none_if_nan
from medfl_report.compare import compare, comparison_row, run_means
from medfl_report.groups import Group
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet
from medfl_report.site_comparison import mean_interval
from medfl_report.statistics import Interval, RunsTest, bootstrap, holm, mean_std, seeds_and_patients_test
from medfl_report.statistics.intervals import LEVEL
from medfl_studies.results.recorded_study import StudyResults


@dataclass(frozen=True)
class Estimate:
    """A score or a difference of scores, as a mean over the seeds.

    Attributes:
        value: Observed value.
        low: Lower end of its 95 % interval; None without an interval.
        high: Upper end of the interval.
        spread: Standard deviation over the seeds; None for a single seed.
        seeds: Number of seeds.
        p: P-value, after Holm's correction in a family of differences; None without a test.
        effect: Effect in words, such as ``better``; empty without a test.
    """

    value: float
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    seeds: int = 1
    p: float | None = None
    effect: str = ""

    @property
    def excludes_zero(self) -> bool:
        """True if there is an interval and 0 lies outside of it."""
        return (
            self.low is not None and self.high is not None and Interval(self.value, self.low, self.high).excludes_zero
        )


@dataclass(frozen=True)
class DataScores:
    """Scores of a study on one data set.

    Attributes:
        results: Raw results of the study.
        data: Name of the data set in the study.
        metric: Metric of estimates that name no other.
        min_images: Smallest number of test images of a site that counts in a mean over the sites.
    """

    results: StudyResults
    data: str
    metric: str
    min_images: int = 0
    _known: dict[tuple[str, ...], Interval | None] = field(default_factory=dict, repr=False, compare=False)
    _compared: dict[tuple[str, ...], Estimate | None] = field(default_factory=dict, repr=False, compare=False)
    _families: dict[str | None, dict[str, Estimate | None]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rows(self) -> list[str]:
        """Names of the rows with runs, in the order of the study file."""
        return list(self.results.groups(self.data))

    @cached_property
    def sites(self) -> list[str]:
        """Names of the sites with test images in the first run, sorted."""
        return sorted(self._first_sets)

    @cached_property
    def counted_sites(self) -> list[str]:
        """Names of the sites that count in a mean over the sites."""
        return [site for site in self.sites if self.images(site) >= self.min_images]

    def images(self, site: str) -> int:
        """Return the number of test images of a site in the first run."""
        return len(self._first_sets[site].rows)

    def seeds(self, row: str, other: str | None = None) -> list[int]:
        """Return the seeds of a row, or the seeds that two rows have in common."""
        both = [self.group(name) for name in (row, other) if name is not None]
        return sorted(set.intersection(*({run.seed for run in group.runs} for group in both)))

    def group(self, row: str) -> Group:
        """Return the runs of a row.

        Raises:
            SettingsError: If the row has no runs.
        """
        groups = self.results.groups(self.data)
        if row not in groups:
            raise SettingsError(
                "unknown_choice",
                f"No run of the row '{row}' on '{self.data}' in '{self.results.folder}'. {did_you_mean(row, groups)}",
                what="row",
                choice=row,
            )
        return groups[row]

    # ---- over patients, for seeds that have the same test images

    def score(self, row: str, site: str | None = None, metric: str | None = None) -> Estimate | None:
        """Return a row's score with an interval over patients.

        Args:
            row: Name of the row.
            site: Name of a site; None for the mean over the counted sites.
            metric: Name of the metric; None for the metric of these scores.

        Returns:
            None if the score is not defined, such as the AUC of a single class.
        """
        return self._over_patients(row, None, site, metric or self.metric)

    def difference(self, row: str, other: str, site: str | None = None, metric: str | None = None) -> Estimate | None:
        """Return a row's score minus another row's score, for the seeds of both, with an interval.

        The interval and the p-value cover the choice of seeds and patients. With a single seed the interval covers
        patients only, and there is no p-value.

        Args:
            row: Name of the row.
            other: Name of the row that is subtracted.
            site: Name of a site; None for the mean over the counted sites.
            metric: Name of the metric; None for the metric of these scores.
        """
        return self._over_patients(row, other, site, metric or self.metric)

    def differences(
        self, pairs: Sequence[tuple[str, str]], metrics: Sequence[str]
    ) -> dict[tuple[str, str, str], Estimate | None]:
        """Return differences between rows (`difference`), with p-values corrected by Holm's procedure for all of them.

        Args:
            pairs: Pairs of rows; the second one is subtracted. A pair with a row without runs is left out.
            metrics: Names of the metrics.

        Returns:
            A mapping from row, other row and metric to the difference.
        """
        keys = [(row, other, metric) for row, other in pairs for metric in metrics if {row, other} <= set(self.rows)]
        values = {(row, other, metric): self.difference(row, other, metric=metric) for row, other, metric in keys}
        tested = {key: value for key, value in values.items() if value is not None and value.p is not None}
        adjusted = holm([value.p for value in tested.values() if value.p is not None])
        return values | {key: replace(value, p=p) for (key, value), p in zip(tested.items(), adjusted, strict=True)}

    def _over_patients(self, row: str, other: str | None, site: str | None, metric: str) -> Estimate | None:
        seeds = self.seeds(row, other)
        if not seeds:
            return None
        sites = self.counted_sites if site is None else [site]
        parts = [part for place in sites if (part := self._site_interval(row, other, place, metric)) is not None]
        if not parts:
            return None
        average, p = mean_interval(parts) if site is None else parts[0], None
        by_seed = [self._seed_mean(row, seed, sites, metric) for seed in seeds]
        if other is not None:
            others = [self._seed_mean(other, seed, sites, metric) for seed in seeds]
            by_seed = [ours - theirs for ours, theirs in zip(by_seed, others, strict=True)]
            test = self._test_seeds(average, by_seed, sites)
            average, p = test.interval or average, None if math.isnan(test.p) else test.p
        spread = mean_std(by_seed)[1]
        return Estimate(average.difference, average.low, average.high, spread, len(seeds), p)

    def _test_seeds(self, interval: Interval, by_seed: Sequence[float], sites: Sequence[str]) -> RunsTest:
        """Test a mean difference over seeds and patients, from its interval over patients."""
        sets = [self._first_sets[site] for site in sites]
        patients = sum(len(test_set.targets) if (n := test_set.patient_count) is None else n for test_set in sets)
        error = (interval.high - interval.low) / (2 * NormalDist().inv_cdf(1 - LEVEL / 2))
        return seeds_and_patients_test(by_seed, error**2, patients)

    def _site_interval(self, row: str, other: str | None, site: str, metric: str) -> Interval | None:
        """Return the mean over the seeds of a score or difference at a site, with its interval over patients."""
        key = (row, other or "", site, metric)
        if key not in self._known:
            names = [row] if other is None else [row, other]
            seeds = self.seeds(row, other)
            self._known[key] = _interval_over_patients(
                [[self._sets(name, seed)[site] for seed in seeds] for name in names], metric, f"{row}, {site}"
            )
        return self._known[key]

    def _seed_mean(self, row: str, seed: int, sites: Sequence[str], metric: str) -> float:
        values = [self._sets(row, seed)[site].score(metric) for site in sites]
        return fmean(value for value in values if not math.isnan(value))

    # ---- over seeds

    def mean(self, row: str, metric: str | None = None) -> Estimate | None:
        """Return the mean over the sites of the exported models' scores, as a mean over the seeds."""
        return _over_seeds(self.by_seed(row, metric))

    def by_seed(self, row: str, metric: str | None = None) -> list[float]:
        """Return the mean over the sites for each run of a row, in the order of seed and fold."""
        return run_means(self.group(row), metric or self.metric)

    def worst(self, row: str, metric: str | None = None) -> Estimate | None:
        """Return the score of the worst site, as a mean over the seeds."""
        name, group = metric or self.metric, self.group(row)
        by_site = [[run.score(site, name) for site in run.sites] for run in group.runs]
        known = [[value for value in values if value is not None] for values in by_site]
        return _over_seeds([worst(name, values) for values in known if values])

    def server_test(self, row: str, metric: str | None = None) -> Estimate | None:
        """Return the score of the global model on the server's test set, as a mean over the seeds."""
        values = [run.server_score(metric or self.metric) for run in self.group(row).runs]
        return _over_seeds([value for value in values if value is not None])

    def compare(self, row: str, base: str, metric: str | None = None) -> Estimate | None:
        """Return the difference of a row from another one, with an interval over seeds and a test over patients.

        The effect is about this pair alone, without a correction for other rows (`compare_all`).

        Returns:
            None for a row and itself, and without a seed that both have.
        """
        group, other = self.group(row), self.group(base)
        key = (row, base, metric or self.metric)
        if group is not other and key not in self._compared:
            self._compared[key] = _compare_groups(group, other, key[2], self.results.read_sets)
        return self._compared.get(key)

    def compare_all(self, base: str | None = None) -> Mapping[str, Estimate | None]:
        """Return the difference of each row from its reference, corrected by Holm's procedure for all rows.

        Args:
            base: Name of the row that all others are compared with; None means the baseline of each row in the study.

        Returns:
            A mapping from row to difference; None for a reference itself.
        """
        if base not in self._families:
            self._families[base] = compare_family({"": self}, base)
        return self._families[base]

    def baseline(self, row: str) -> str:
        """Return the row that a row is compared with: its own baseline, or the study's; itself if there is none."""
        return str(self._study_rows[row].get("baseline") or self.results.raw.baseline or row)

    @cached_property
    def _study_rows(self) -> dict[str, Any]:
        """Rows of the study file, by name."""
        rows: dict[str, Any] = yaml.safe_load(self.results.raw.study_file)["rows"]
        return rows

    # ---- other numbers

    def bytes_up(self, row: str) -> float:
        """Return the largest number of bytes that a site sends to the server in a round."""
        return max(
            cost.bytes_up / run.summary.rounds
            for run in self.group(row).runs
            if run.summary is not None
            for cost in run.summary.costs.values()
        )

    def counts(self, split: str) -> list[int]:
        """Return the number of images of each site, in the order of `sites`, in the first run.

        Args:
            split: ``training``, ``validation`` or ``test``.

        Raises:
            DataError: If the run does not know the numbers.
        """
        holdings = self.group(self.rows[0]).runs[0].holdings
        if holdings is None:
            raise DataError("no_counts", f"The runs on '{self.data}' have no numbers of images.", data=self.data)
        return [sum(holdings.sites[site][split]) for site in self.sites]

    def undefined_cases(self, row: str, column: str) -> int:
        """Return for how many test cases, of all runs of a row, a column of the predictions has no number.

        Args:
            row: Name of the row.
            column: Name of a column of the predictions, such as ``hd95_1``.
        """
        sets = [test_set for seed in self.seeds(row) for test_set in self._sets(row, seed).values()]
        columns = [test_set.predictions[:, test_set.objective.columns(()).index(column)] for test_set in sets]
        return sum(int(values.isnan().sum()) for values in columns)

    def noise(self, row: str) -> float:
        """Return the noise multiplier of a row: the largest standard deviation of noise over the clip of any site.

        Raises:
            SettingsError: If the row has no noise.
        """
        accounts = [account for run in self.group(row).runs for account in _accounts(run)]
        if not accounts:
            raise SettingsError("no_noise", f"The row '{row}' has no differential privacy.", row=row)
        return max(accounts)

    def weighting(self, row: str) -> str:
        """Return how the method of a row weights sites when it averages, such as ``size``."""
        identity = self.group(row).runs[0].run.identity
        method = _registry().make_method(identity.method, identity.method_args)
        return str(getattr(method, "weighting", "not stated"))

    def _sets(self, row: str, seed: int) -> PredictionSets:
        run = next(run for run in self.group(row).runs if run.seed == seed)
        sets = self.results.read_sets(run)
        if not sets:
            raise DataError(
                "no_predictions", f"No predictions of '{row}', seed {seed}, on '{self.data}'.", row=row, seed=seed
            )
        return sets

    @cached_property
    def _first_sets(self) -> Mapping[str, PredictionSet]:
        return self.results.read_sets(self.group(self.rows[0]).runs[0])


def image_epsilon(variance: float, is_replaced: bool) -> float:
    """Return the epsilon of one image's part that is clipped to L2 norm 1 and sent once with Gaussian noise.

    Args:
        variance: Variance of the noise.
        is_replaced: Whether another image takes the image's place; otherwise it is added or removed.
    """
    value = ImageRelease("gaussian", variance, clip=1.0).epsilon("replace" if is_replaced else "add_remove")
    assert value is not None  # the part is clipped
    return value


def site_epsilon(noise: float, releases: int, is_replaced: bool) -> float:
    """Return the epsilon of a site's clipped updates with Gaussian noise, for a delta of 1e-5.

    Args:
        noise: Standard deviation of the noise over the clip (`DataScores.noise`).
        releases: Number of updates.
        is_replaced: Whether other data take the place of the site's; otherwise its updates count as nothing.
    """
    return epsilon(noise, releases, 1e-5, 2.0 if is_replaced else 1.0)


def _over_seeds(values: Sequence[float]) -> Estimate | None:
    """Return mean and standard deviation of one value for each seed; None without a value."""
    if not values:
        return None
    mean, spread = mean_std(values)
    return Estimate(mean, spread=spread, seeds=len(values))


def compare_family(parts: Mapping[str, DataScores], base: str | None = None) -> dict[str, Estimate | None]:
    """Return the difference of each row of one or several studies from its reference; None for a reference itself.

    All differences are one family: p-values and effects are corrected by Holm's procedure, and intervals are not.

    Args:
        parts: Maps an ending to the scores of a study with the same metric. A row has the label `row` + ending.
        base: Name of the row that the others of its study are compared with; None means the baseline of each row.

    Returns:
        A mapping from label to difference.
    """
    runs: list[RunRecord] = []
    labels, bases = [], {}
    for ending, scores in parts.items():
        for row in scores.rows:
            group = scores.group(row)
            runs += group.runs
            labels += [row + ending] * len(group.runs)
            bases[row + ending] = (base or scores.baseline(row)) + ending
    first = next(iter(parts.values()))
    table = compare(runs, [first.metric], bases, labels=labels, sets_of=first.results.read_sets)
    lines = table.to_dict("records")
    return {str(line["label"]): _family_estimate(line) if line["baseline"] != line["label"] else None for line in lines}


def _family_estimate(line: Mapping[Hashable, Any]) -> Estimate:
    """Return the difference in a row of the table of `compare`."""
    low, high, p = (none_if_nan(line[name]) for name in ("low", "high", "p_holm"))
    return Estimate(line["difference"], low, high, None, line["pairs"], p, line["effect"])


def _compare_groups(
    group: Group, base: Group, metric: str, sets_of: Callable[[RunRecord], PredictionSets]
) -> Estimate | None:
    """Return the difference of two rows with an interval over seeds and a test over patients; None without a pair."""
    line = comparison_row(group, base, metric, "test", sets_of)
    if not line["pairs"]:
        return None
    low, high, p = (none_if_nan(line[name]) for name in ("low", "high", "p_patients"))
    return Estimate(line["difference"], low, high, None, line["pairs"], p, line["effect"])


def _interval_over_patients(groups: Sequence[Sequence[PredictionSet]], metric: str, place: str) -> Interval | None:
    """Return the mean score of the first group of test sets, minus that of the second, with an interval over patients.

    A resample draws the same patients for all seeds of both groups.

    Args:
        groups: One or two groups, each with a test set for each seed.
        metric: Name of the metric.
        place: Row and site, for messages.

    Raises:
        DataError: If the test sets contain different images.
    """
    first = groups[0][0]
    if not all(first.same_images(test_set) for group in groups for test_set in group):
        raise DataError(
            "other_images",
            f"{place}: the seeds or rows have different test images, so there is no interval over patients. Use the "
            "comparison over seeds.",
            place=place,
        )
    score, width, cut = partial(first.objective.weighted_score, metric), first.predictions.shape[1], len(groups[0])

    def mean_difference(predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        scores = [score(part, targets, weights) for part in predictions.split(width, dim=1)]
        value = torch.stack(scores[:cut]).mean(dim=0)
        return value - torch.stack(scores[cut:]).mean(dim=0) if len(groups) > 1 else value

    stacked = torch.cat([test_set.predictions for group in groups for test_set in group], dim=1)
    return bootstrap(mean_difference, stacked, first.targets, patients=first.patients)


def _accounts(run: RunRecord) -> list[float]:
    """Return the noise multiplier of each site of a run with differential privacy."""
    accounts = {} if run.summary is None else run.summary.privacy
    return [account.sigma for account in accounts.values() if account.sigma is not None]


@cache
def _registry() -> Registry:
    return load_plugins()
