"""The summary of a run: its last round's scores, its costs, and who holds what."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from medfl.core.evaluation import Row
from medfl.core.journal import Outcome
from medfl.core.status import DIVERGED, FINISHED
from medfl.data.pooled import countable
from medfl.metrics import worst
from medfl.objectives import Objective
from medfl.runs.records import iterate_metrics
from medfl.settings import Settings
from medfl.types import GLOBAL, PUBLIC, Dataset, Meta

SUMMARY = "summary.json"
"""The file that a run writes last: a folder with it holds a run that is over, with all that belongs to it."""

COSTS = {
    "bytes_up": "bytes_up",
    "bytes_down": "bytes_down",
    "bytes_to_peers": "bytes_to_peers",
    "train_seconds": "work_seconds",
    "evaluate_seconds": "evaluate_seconds",
}
"""Name of a cost in the summary to its metric in ``metrics.csv``."""


def summarise(
    csv: Path,
    method: str,
    outcome: Outcome,
    settings: Settings,
    metric: str,
    sites: Sequence[str] = (),
    missing: Collection[str] = (),
) -> Meta:
    """The scores of the run's models (per site, mean, worst site, the global test set), and what each site spent.

    Args:
        csv: The run's ``metrics.csv``.
        method: The method's name.
        outcome: How the run ended.
        settings: The run's.
        metric: What rounds are compared by.
        sites: Of the run.
        missing: Sites that did not answer when they were asked last, for whatever.
    """
    costs: dict[str, dict[str, list[float]]] = {}
    round_ = 0 if outcome.round == outcome.rounds else outcome.round
    scores: list[Row] = []
    for row in iterate_metrics(csv):
        if row.split == "train":
            spent = costs.setdefault(row.site, {name: [] for name in COSTS.values()})
            if row.metric in spent and not math.isnan(row.value):
                spent[row.metric].append(row.value)
        elif row.moment == "aggregated" and row.split in ("val", "test", "shared"):
            if row.round > round_ and outcome.round == outcome.rounds:
                round_, scores = row.round, []  # the newest round replaces earlier ones
            if row.round == round_ and "@" not in row.model:
                scores.append(row)
    results: Meta = {}
    for (model, split, name), values in sorted(_by_score(scores).items()):
        pooled, public = values.pop(GLOBAL, None), values.pop(PUBLIC, None)
        defined = [value for value in values.values() if not math.isnan(value)]
        results.setdefault(model, {}).setdefault(split, {})[name] = {
            "mean": sum(defined) / len(defined) if defined else None,
            "worst": worst(name, defined) if defined else None,
            "sites": {site: _number(value) for site, value in values.items()},
            "global_test": _number(pooled),
            "public_test": _number(public),
        }
    return {
        "method": method,
        "status": outcome.status,
        "reason": outcome.reason,
        "rounds": outcome.rounds,
        "evaluated_round": round_ if scores else None,
        "models_round": outcome.round,
        "best_round": chosen_round(outcome, settings, metric),
        "scores": results,
        "costs": {
            site: {name: math.fsum(spent[metric]) for name, metric in COSTS.items()}
            for site, spent in sorted(costs.items())
        },
        "attendance": {
            "sites": len(sites),
            "away": sorted({*outcome.away, *missing} & {*sites}),
            "missed": outcome.missed,
        },
    }


def ended_on(summary: Meta) -> str:
    """On how many of its sites a run ended, as a part of a sentence: `` on 5 of 7 sites``; empty if on all.

    Of a run that diverged it says nothing: that its replies could not be used is another matter than who was there.

    Args:
        summary: Of the run; of an earlier version, or empty while the run is not over, it says nothing of that.
    """
    attendance = summary.get("attendance", {})
    away = 0 if summary.get("status") == DIVERGED else len(attendance.get("away", ()))
    return f" on {attendance['sites'] - away} of {attendance['sites']} sites" if away else ""


def chosen_round(outcome: Outcome, settings: Settings, metric: str) -> Meta | None:
    """Which round had the best validation score, and what came of it; None where the run does not ask."""
    if not settings.validates:
        return None
    best = outcome.best
    return {
        "round": best.round or None,
        "metric": metric,
        "score": best.score if best.round else None,
        "on": "validation images, mean over the sites",
        "taken_home": settings.best_round and best.round > 0,
        "ended_early": outcome.status == FINISHED and outcome.rounds < settings.rounds,
    }


def holdings(sites: Mapping[str, Mapping[str, Dataset]], classes: Sequence[str], objective: Objective) -> Meta:
    """Who holds what: images of each class, by site and split.

    Args:
        sites: Site to split to data.
        classes: Names of the classes.
        objective: Counts them.
    """
    return {
        "classes": list(classes),
        "sites": {
            site: {split: objective.counts(countable(data, objective)) for split, data in splits.items()}
            for site, splits in sorted(sites.items())
        },
    }


def _by_score(rows: Sequence[Row]) -> dict[tuple[str, str, str], dict[str, float]]:
    """Map each (model, split, metric) to its values by site."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        values.setdefault((row.model, row.split, row.metric), {})[row.site] = row.value
    return values


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
