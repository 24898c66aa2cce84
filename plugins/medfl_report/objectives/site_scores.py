"""Scores of each site with intervals, for the sections about one kind of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from medfl.utils.formats import listed
from medfl_report.gains import mean_interval
from medfl_report.groups import Group, by_seed
from medfl_report.patient_tests import Sets
from medfl_report.predictions import Tested
from medfl_report.scores import pool_group
from medfl_report.statistics import Interval, Score, bootstrap

RESAMPLES = 1000
"""Of each interval: a page has many of them."""


@dataclass(frozen=True)
class SiteScores:
    """A score of a group's models, as mean over its runs.

    Attributes:
        by_site: Site to the score of the model that it takes home; None where it is not defined.
        mean: Over the sites where it is defined, taken as independent; None without any.
        pooled: Of the cases of all sites together, for which their models must be on one scale; None where it is not
            defined.
    """

    by_site: Mapping[str, Interval | None]
    mean: Interval | None
    pooled: Interval | None

    @property
    def defined(self) -> int:
        """At how many sites there is a score."""
        return sum(interval is not None for interval in self.by_site.values())


def score_sites(group: Group, tested: Mapping[str, Sets], score: str | Score, together: bool = False) -> SiteScores:
    """A score at each site.

    Args:
        group: Runs of a method.
        tested: Run folder, as text, to its test sets.
        score: Name of a metric of the objective, or any other score.
        together: Whether it is wanted of all sites' cases together, too.
    """
    by_site = {
        site: _over_runs(
            [
                interval_of(test_set, score)
                for run in group.runs
                if (test_set := tested[str(run.folder)].get(site)) is not None
            ]
        )
        for site in sites_of([group], tested)
    }
    defined = [interval for interval in by_site.values() if interval is not None]
    pools = [pool_group(Group(group.label, tuple(runs)), tested) for runs in by_seed(group).values() if together]
    pooled = _over_runs([interval_of(pool, score) for pool in pools if pool is not None])
    return SiteScores(by_site, mean_interval(defined) if defined else None, pooled)


def interval_of(test_set: Tested, score: str | Score) -> Interval | None:
    """A score with its interval over patients; None where it is not defined, or the model gave no numbers."""
    if not test_set.defined:
        return None
    named = partial(test_set.objective.weighted_score, score) if isinstance(score, str) else score
    return bootstrap(named, test_set.judged, test_set.targets, resamples=RESAMPLES, patients=test_set.patients)


def _over_runs(intervals: Sequence[Interval | None]) -> Interval | None:
    """The mean of the score and of both ends over the runs where it is defined; None without any."""
    defined = [interval for interval in intervals if interval is not None]
    if not defined:
        return None
    return Interval(*(fmean(getattr(interval, part) for interval in defined) for part in ("difference", "low", "high")))


def with_predictions(groups: Sequence[Group], tested: Mapping[str, Sets]) -> list[Group]:
    """The groups of which any run has predictions, cut to these runs."""
    cut = [Group(group.label, tuple(run for run in group.runs if tested[str(run.folder)])) for group in groups]
    return [group for group in cut if group.runs]


def first_seed(groups: Sequence[Group], tested: Mapping[str, Sets]) -> dict[str, Tested]:
    """Group label to the test images of all sites in all folds of the group's first seed: everyone is there once.

    Groups whose models can't be pooled, or without predictions, are left out.
    """
    pools = {
        group.label: pool_group(Group(group.label, tuple(next(iter(by_seed(group).values())))), tested)
        for group in groups
    }
    return {label: pool for label, pool in pools.items() if pool is not None}


def sites_of(groups: Sequence[Group], tested: Mapping[str, Sets]) -> list[str]:
    """Names of the sites that have predictions in any of the groups' runs."""
    return sorted({site for group in groups for run in group.runs for site in tested[str(run.folder)]})


def several_seeds(groups: Sequence[Group]) -> bool:
    """Whether any of the groups has runs of more than one seed, of which pictures show the first."""
    return any(len({run.seed for run in group.runs}) > 1 for group in groups)


def resampled(groups: Sequence[Group], tested: Mapping[str, Sets]) -> str:
    """What the intervals are over, as a sentence."""
    sets = [(site, test_set) for group in groups for run in group.runs for site, test_set in _sets(run.folder, tested)]
    known = sorted({site for site, test_set in sets if test_set.patients is not None})
    others = {site for site, test_set in sets if test_set.patients is None}
    if not known:
        who = "test cases, since no two are known to be of one patient"
    elif not others:
        who = "test patients, each with all images"
    else:
        who = f"test patients, each with all images, at {listed(known)}, and of the cases elsewhere"
    return (
        f"Below a number is its 95 % interval: bootstrap, {RESAMPLES} resamples of each site's {who}. That of the mean "
        "of sites combines those of the sites, taken as independent."
    )


def _sets(folder: object, tested: Mapping[str, Sets]) -> Sequence[tuple[str, Tested]]:
    return list(tested[str(folder)].items())
