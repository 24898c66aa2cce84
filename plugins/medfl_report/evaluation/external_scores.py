"""External scores of groups of runs: at each site that did not train, and their mean over these sites.

A group is a set of runs of one method that differ only in seed and fold. In a leave-one-site-out comparison it has a
run for each seed and each site that is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from medfl.engine.runs.records import RunRecord
from medfl.records.evaluation import DataRelation, ScoreEstimate
from medfl.utils.formats import metric_words, score
from medfl_report.cards.score_computation import estimate_from
from medfl_report.evaluation.evaluate import estimate_scores
from medfl_report.evaluation.stored import StoredEvaluation, read_evaluations
from medfl_report.site_comparison import mean_interval
from medfl_report.statistics import Interval, paired_t

SITES_MODELS = "sites"
"""Name of the models of all sites of a run without a global model."""


@dataclass(frozen=True)
class SiteEvaluations:
    """External evaluations of a group's models at one site, one for each run.

    Attributes:
        site: Name of the site.
        runs: Runs of the evaluations.
        evaluations: The evaluations, in the order of the runs.
    """

    site: str
    runs: tuple[RunRecord, ...]
    evaluations: tuple[StoredEvaluation, ...]

    @property
    def images(self) -> int | None:
        """Number of images of the first evaluation."""
        return self.evaluations[0].record.images

    @property
    def patients(self) -> int | None:
        """Number of patients of the first evaluation; None if they are unknown."""
        return self.evaluations[0].record.patients

    def estimate(self, metric: str) -> ScoreEstimate | None:
        """Return the mean score over the runs with its 95 % interval; None if it is not defined in every run.

        If all runs were evaluated on the same images, the interval is over the patients. Else it is Student's t over
        the runs, as each run then has other patients.

        Args:
            metric: Name of the metric.
        """
        records = [stored.record for stored in self.evaluations]
        scores = [record.scores.get(metric) for record in records]
        if len(scores) == 1 or None in scores:
            return scores[0] if len(scores) == 1 else None
        if len({record.data for record in records}) == 1:
            sets = [
                test_set
                for stored, run in zip(self.evaluations, self.runs, strict=True)
                for test_set in stored.prediction_sets(run)
            ]
            if len(sets) == sum(len(record.models) for record in records):
                return estimate_scores(sets, [metric])[metric]
        return _over_runs([score.value for score in scores if score is not None])


@dataclass(frozen=True)
class ExternalRow:
    """External scores of a group's models in all metrics.

    Attributes:
        label: Label of the group.
        model: Name of the models: ``global``, a site, or `SITES_MODELS` for the mean over the sites' models.
        sites: Evaluations by site, sorted by the site's name.
    """

    label: str
    model: str
    sites: tuple[SiteEvaluations, ...]

    def by_site(self, metric: str) -> dict[str, ScoreEstimate | None]:
        """Return the estimate at each site; None if it is not defined.

        Args:
            metric: Name of the metric.
        """
        return {part.site: part.estimate(metric) for part in self.sites}

    def mean(self, metric: str) -> ScoreEstimate | None:
        """Return the mean over the sites where the score is defined, each with the same weight; None without any.

        The sites are taken as independent.

        Args:
            metric: Name of the metric.
        """
        return mean_over_sites(list(self.by_site(metric).values()))


def mean_over_sites(estimates: Sequence[ScoreEstimate | None]) -> ScoreEstimate | None:
    """Return the mean of independent estimates with its interval, without the undefined ones; None without any."""
    intervals = [Interval(score.value, score.low, score.high) for score in estimates if score is not None]
    return estimate_from(mean_interval(intervals)) if intervals else None


def _over_runs(values: Sequence[float]) -> ScoreEstimate:
    """Return the mean of at least two values with Student's interval; its ends are NaN if all values are equal."""
    return estimate_from(paired_t(values)) or ScoreEstimate(value=fmean(values), low=math.nan, high=math.nan)


def external_rows(runs_by_label: Mapping[str, Sequence[RunRecord]]) -> list[ExternalRow]:
    """Return the external scores of groups of runs, a row for each group and kind of model.

    Evaluations that are not external, or could not be verified as external, are left out.

    Args:
        runs_by_label: Maps the label of each group to its runs.

    Raises:
        StoreError: If a file of an evaluation is damaged.
    """
    rows = []
    for label, runs in runs_by_label.items():
        members: dict[str, dict[str, list[tuple[RunRecord, StoredEvaluation]]]] = {}
        for run in runs:
            for stored in read_evaluations(run):
                if stored.record.is_external:
                    model = stored.record.models[0].name if len(stored.record.models) == 1 else SITES_MODELS
                    members.setdefault(model, {}).setdefault(stored.record.site, []).append((run, stored))
        for model, by_site in sorted(members.items()):
            sites = tuple(
                SiteEvaluations(site, tuple(run for run, _ in pairs), tuple(stored for _, stored in pairs))
                for site, pairs in sorted(by_site.items())
            )
            rows.append(ExternalRow(label, model, sites))
    return rows


def external_sites(runs: Iterable[RunRecord]) -> list[str]:
    """Return the sorted names of the sites of all external evaluations of the runs."""
    evaluations = [stored.record for run in runs for stored in read_evaluations(run)]
    return sorted({record.site for record in evaluations if record.is_external})


def other_evaluations(runs_by_label: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Return a text for each evaluation that is not external, or could not be verified as external.

    If it could not be verified, the text contains the scores.
    """
    records = {
        label: [stored.record for run in runs for stored in read_evaluations(run)]
        for label, runs in runs_by_label.items()
    }
    return [
        f"{label}, {record.model} at {record.site}: {relation_words(record.relation, record.scores)}"
        for label, evaluations in records.items()
        for record in evaluations
        if not record.is_external
    ]


def relation_words(relation: DataRelation, scores: Mapping[str, ScoreEstimate | None]) -> str:
    """Return the relation to the run's data in words, with the scores if the relation could not be checked."""
    if relation.kind != "unchecked":
        return relation.sentence
    texts = [
        f"{metric_words(name)} {score(estimate.value)} ({score(estimate.low)} to {score(estimate.high)})"
        for name, estimate in scores.items()
        if estimate is not None
    ]
    return f"{relation.sentence} Scores: {', '.join(texts)}." if texts else relation.sentence
