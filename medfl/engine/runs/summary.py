"""Summarise a run: its final scores, costs, attendance and best round, and the images of each class at the sites."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from medfl.data.pooled import countable_targets
from medfl.engine.evaluation import MetricRow
from medfl.engine.journal import RunOutcome
from medfl.engine.runs.records import iterate_metrics
from medfl.engine.status import DIVERGED, FINISHED
from medfl.metrics import worst
from medfl.objectives import Objective
from medfl.records.summary import Attendance, BestRound, ImageCounts, MetricScores, SiteCosts, Summary
from medfl.settings import Settings
from medfl.types import GLOBAL, PUBLIC, Dataset
from medfl.utils.formats import none_if_nan

COST_METRICS = {
    "bytes_up": "bytes_up",
    "bytes_down": "bytes_down",
    "bytes_to_peers": "bytes_to_peers",
    "train_seconds": "work_seconds",
    "evaluate_seconds": "evaluate_seconds",
}
"""Maps the name of each cost in the summary to the name of the metric in ``metrics.csv`` that it is computed from."""


def summarise(
    csv: Path,
    method: str,
    outcome: RunOutcome,
    settings: Settings,
    metric: str,
    sites: Sequence[str] = (),
    missing: Collection[str] = (),
) -> Summary:
    """Return the summary of a run: scores of its models, costs of each site, attendance, best round.

    Args:
        csv: Path of the run's ``metrics.csv``.
        method: Name of the method.
        outcome: Result of the run at the server.
        settings: Settings of the run.
        metric: Metric that rounds are compared by.
        sites: Names of the sites of the run.
        missing: Further unavailable sites, besides those in `outcome`.
    """
    costs: dict[str, dict[str, list[float]]] = {}
    round_ = 0 if outcome.round == outcome.rounds else outcome.round
    scores: list[MetricRow] = []
    for row in iterate_metrics(csv):
        if row.split == "train":
            spent = costs.setdefault(row.site, {name: [] for name in COST_METRICS.values()})
            if row.metric in spent and not math.isnan(row.value):
                spent[row.metric].append(row.value)
        elif row.moment == "aggregated" and row.split in ("val", "test", "shared"):
            if row.round > round_ and outcome.round == outcome.rounds:
                round_, scores = row.round, []  # the newest round replaces earlier ones
            if row.round == round_ and "@" not in row.model:
                scores.append(row)
    results: dict[str, dict[str, dict[str, MetricScores]]] = {}
    for (model, split, name), values in sorted(_values_by_site(scores).items()):
        pooled, public = values.pop(GLOBAL, None), values.pop(PUBLIC, None)
        defined = [value for value in values.values() if not math.isnan(value)]
        results.setdefault(model, {}).setdefault(split, {})[name] = MetricScores(
            mean=sum(defined) / len(defined) if defined else None,
            worst=worst(name, defined) if defined else None,
            sites={site: none_if_nan(value) for site, value in values.items()},
            server_test=none_if_nan(pooled),
            public_test=none_if_nan(public),
        )
    return Summary(
        method=method,
        status=outcome.status,
        reason=outcome.reason,
        rounds=outcome.rounds,
        evaluated_round=round_ if scores else None,
        models_round=outcome.round,
        best_round=best_round_of(outcome, settings, metric),
        scores=results,
        costs={
            site: SiteCosts(**{name: math.fsum(spent[metric]) for name, metric in COST_METRICS.items()})
            for site, spent in sorted(costs.items())
        },
        attendance=Attendance(
            sites=len(sites),
            unavailable=tuple(sorted({*outcome.unavailable, *missing} & {*sites})),
            missed_rounds={
                site: tuple((first, last) for first, last in stretches)
                for site, stretches in outcome.missed_rounds.items()
            },
        ),
    )


def describe_unavailable(summary: Summary | None) -> str:
    """Return the number of sites that were available at the end of a run, as a text such as `` on 5 of 7 sites``.

    The text is empty if all sites were available, and for a run that diverged, whose replies were not usable.

    Args:
        summary: Summary of the run, or None while the run is not over; then the text is empty.
    """
    if summary is None or summary.status == DIVERGED or not summary.attendance.unavailable:
        return ""
    sites = summary.attendance.sites
    return f" on {sites - len(summary.attendance.unavailable)} of {sites} sites"


def best_round_of(outcome: RunOutcome, settings: Settings, metric: str) -> BestRound | None:
    """Return the round with the best validation score; None if the run does not compare rounds.

    Args:
        outcome: Result of the run at the server.
        settings: Settings of the run.
        metric: Metric that rounds are compared by.
    """
    if not settings.needs_validation:
        return None
    best = outcome.best
    return BestRound(
        round=best.round or None,
        metric=metric,
        score=best.score if best.round else None,
        scored_on="validation images, mean over the sites",
        is_exported=settings.best_round and best.round > 0,
        ended_early=outcome.status == FINISHED and outcome.rounds < settings.rounds,
    )


def count_images(
    sites: Mapping[str, Mapping[str, Dataset]], classes: Sequence[str], objective: Objective
) -> ImageCounts:
    """Count the images of each class, by site and split.

    Args:
        sites: Maps each site to its splits and their data.
        classes: Names of the classes.
        objective: Objective of the task, which counts the images of each class.
    """
    return ImageCounts(
        classes=tuple(classes),
        sites={
            site: {split: tuple(objective.counts(countable_targets(data, objective))) for split, data in splits.items()}
            for site, splits in sorted(sites.items())
        },
    )


def _values_by_site(rows: Sequence[MetricRow]) -> dict[tuple[str, str, str], dict[str, float]]:
    """Map each (model, split, metric) to a mapping from sites to values."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        values.setdefault((row.model, row.split, row.metric), {})[row.site] = row.value
    return values
