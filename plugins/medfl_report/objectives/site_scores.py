"""Scores of each site with confidence intervals, for the sections about one kind of task.

A group is a set of runs of one method that differ only in seed and fold. A site exports its personal model if the
method trains one, else the global model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from medfl.utils.formats import join_words
from medfl_report.groups import Group, by_seed, repeated_word, split_ratio
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet, resampled_unit
from medfl_report.scores import pool_group
from medfl_report.site_comparison import mean_interval
from medfl_report.statistics import Interval, ScoreFunction, bootstrap, paired_t

RESAMPLES = 1000
"""Number of bootstrap resamples of each interval; a page has many intervals."""


@dataclass(frozen=True)
class SiteScores:
    """A score of a group's exported models, with confidence intervals.

    The intervals of a single run are bootstraps over the test patients. The intervals of several runs are Student's t
    over the runs; their ends are NaN if the spread is not known.

    Attributes:
        by_site: Maps each site to the score of its exported model; None if it is not defined.
        mean: Mean over the sites where the score is defined; None without any.
        pooled: Score of the cases of all sites together, which requires models on one scale; None if it is not defined.
    """

    by_site: Mapping[str, Interval | None]
    mean: Interval | None
    pooled: Interval | None

    @property
    def defined(self) -> int:
        """Number of sites with a score."""
        return sum(interval is not None for interval in self.by_site.values())


def score_sites(
    group: Group, tested: Mapping[str, PredictionSets], score: str | ScoreFunction, together: bool = False
) -> SiteScores:
    """Compute a score at each site.

    Args:
        group: Runs of a method.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.
        score: Name of a metric of the objective, or a score function.
        together: True to also compute `SiteScores.pooled`, the score of all sites' cases together.
    """
    sites = sites_of([group], tested)
    if len(group.runs) == 1:
        sets = tested[str(group.runs[0].folder)]
        intervals = {site: interval_of(sets[site], score) for site in sites}
        defined = [interval for interval in intervals.values() if interval is not None]
        pool = pool_group(group, tested) if together else None
        pooled = None if pool is None else interval_of(pool, score)
        return SiteScores(intervals, mean_interval(defined) if defined else None, pooled)
    ratio = split_ratio(group.runs)
    values = [
        {site: _value(test_set, score) for site, test_set in tested[str(run.folder)].items()} for run in group.runs
    ]
    by_site = {site: _over_runs([by_run.get(site, math.nan) for by_run in values], ratio) for site in sites}
    means = [[value for value in by_run.values() if not math.isnan(value)] for by_run in values]
    mean = _over_runs([fmean(of_run) for of_run in means if of_run], ratio)
    pools = [pool_group(Group(group.label, tuple(runs)), tested) for runs in by_seed(group).values() if together]
    return SiteScores(by_site, mean, _over_runs([_value(pool, score) for pool in pools if pool is not None], None))


def interval_of(test_set: PredictionSet, score: str | ScoreFunction) -> Interval | None:
    """Return a score with its bootstrap interval over patients; None if it is not defined or predictions are NaN."""
    if not test_set.defined:
        return None
    return bootstrap(
        _function(test_set, score),
        test_set.predictions,
        test_set.targets,
        resamples=RESAMPLES,
        patients=test_set.patients,
    )


def _value(test_set: PredictionSet, score: str | ScoreFunction) -> float:
    """Return a score without an interval; NaN if it is not defined."""
    if not test_set.defined:
        return math.nan
    weights = test_set.predictions.new_ones(len(test_set.rows), 1)
    return float(_function(test_set, score)(test_set.predictions, test_set.targets, weights)[0])


def _function(test_set: PredictionSet, score: str | ScoreFunction) -> ScoreFunction:
    return partial(test_set.objective.weighted_score, score) if isinstance(score, str) else score


def _over_runs(values: Sequence[float], ratio: float | None) -> Interval | None:
    """Return the mean over the runs where a score is defined, with its interval by Student's t; None without any."""
    defined = [value for value in values if not math.isnan(value)]
    if not defined:
        return None
    return paired_t(defined, ratio=ratio) or Interval(fmean(defined), math.nan, math.nan)


def with_predictions(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> list[Group]:
    """Return the groups that have predictions, without their runs that have none."""
    cut = [Group(group.label, tuple(run for run in group.runs if tested[str(run.folder)])) for group in groups]
    return [group for group in cut if group.runs]


def first_seed(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> dict[str, PredictionSet]:
    """Return the concatenated test sets of all sites and folds of each group's first seed, so that each case is once.

    Args:
        groups: Groups of runs.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.

    Returns:
        Mapping from the label of each group to the group's test set, without the groups that have no predictions.
    """
    pools = {
        group.label: pool_group(Group(group.label, tuple(next(iter(by_seed(group).values())))), tested)
        for group in groups
    }
    return {label: pool for label, pool in pools.items() if pool is not None}


def sites_of(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> list[str]:
    """Return the sorted names of the sites that have predictions in any run of the groups."""
    return sorted({site for group in groups for run in group.runs for site in tested[str(run.folder)]})


def several_seeds(groups: Sequence[Group]) -> bool:
    """Return whether a group has runs of several seeds; figures then show the first seed."""
    return any(len({run.seed for run in group.runs}) > 1 for group in groups)


def resampled(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> str:
    """Return a sentence about the kind of the intervals: bootstraps over patients, or Student's t over runs."""
    sets = [test_set for group in groups for run in group.runs for test_set in tested[str(run.folder)].items()]
    if repeated := repeated_word(groups):
        single = any(len(group.runs) == 1 for group in groups)
        unit = resampled_unit(test_set for _, test_set in sets)
        rest = f"; for a method with one run, bootstrap over its {unit}" if single else ""
        return f"Below a number is its 95 % confidence interval: Student's t over the {repeated}{rest}."
    with_patients = sorted({site for site, test_set in sets if test_set.patients is not None})
    others = {site for site, test_set in sets if test_set.patients is None}
    if not with_patients:
        who = "test cases, as patient numbers are not known"
    elif not others:
        who = "test patients, each with all images"
    else:
        who = f"test patients, each with all images, at {join_words(with_patients)}, and of the cases elsewhere"
    return (
        f"Below a number is its 95 % confidence interval: bootstrap, {RESAMPLES} resamples of each site's {who}. The "
        "interval of the mean over the sites combines those of the sites, taken as independent."
    )
