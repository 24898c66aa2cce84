"""How well runs keep what they learned: global, local and worst accuracy, backward transfer, consistency, balance.

Definitions: Fowler and AlRegib, ICIP 2026, section 3 and table 1. Means over rounds and over seeds are kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import get_args

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.metrics import LOWER_IS_BETTER, UNBOUNDED
from medfl_report.forgetting_scores import Mode, backward_transfer, consistency
from medfl_report.groups import Group, repetitions
from medfl_report.scores import key_metrics
from medfl_report.trajectory import Trajectory, read_trajectory

MEASURES = {
    "global_mean": "global test, mean over the rounds",
    "global_std": "global test, standard deviation over the rounds",
    "global_final": "global test after the last round",
    "local_mean": "sites right after their training, mean over participants, then over rounds",
    "local_std": "sites right after their training, standard deviation over the rounds of the participants' mean",
    "local_final": "sites right after their training in the last round",
    "worst_mean": "worst participant right after its training, mean over the rounds",
    "worst_site": "lowest mean of a site, over the rounds in which it trained",
    "balance": "mean of global_mean and local_mean",
    "bwt_mean": "backward transfer of the global model, mean over the rounds",
    "bwt_final": "backward transfer of the global model at the last round",
    "personal_change_mean": "change of the sites' personal models since each site last took part, mean over the rounds",
    "personal_change_final": "change of the sites' personal models since each site last took part, at the last round",
    "consistency_global": "global test: 1 minus the mean forgetting between a peak and its recovery",
    "consistency_global_open": "consistency_global with an interval without recovery counted as well",
    "consistency_global_clipped": "consistency_global with losses only",
    "intervals_global": "number of intervals in consistency_global",
    "consistency_local": "sites right after their training, mean over participants: as consistency_global",
    "consistency_local_open": "consistency_local with an interval without recovery counted as well",
    "consistency_local_clipped": "consistency_local with losses only",
    "intervals_local": "number of intervals in consistency_local",
}
"""Name of each measure to what it says. Larger is better for all but the standard deviations and the intervals."""

CLAIMABLE = tuple(name for name in MEASURES if not name.endswith("_std") and not name.startswith("intervals_"))
"""The measures of which larger is better, so that one run can be said to be better than another."""


OWN_TESTS = "sites that train and have test images of their own"
"""What some measures need; a method that pools the sites' data has no such site."""


def forgetting_metric(groups: Sequence[Group]) -> str | None:
    """The metric to measure forgetting in: accuracy where all runs have it, else the first of the `key_metrics`.

    Larger is better in it; None if there is no such metric.
    """
    names = [name for name in key_metrics(groups) if name not in LOWER_IS_BETTER | UNBOUNDED]
    return "accuracy" if "accuracy" in names else next(iter(names), None)


def measures(run: RunRecord, metric: str) -> dict[str, float]:
    """The `MEASURES` of a run; without those that its scores do not tell (see `missing`).

    Each is over the rounds that were scored for it, so a run that ended early counts with what it has, and of a round
    whose sites have trained but whose end was not scored only the sites' scores count. Scores that are not defined are
    left out. Standard deviations over rounds divide by their number (ddof = 0).

    Args:
        run: Finished or not.
        metric: One of its task's metrics, in [0, 1], larger is better.
    """
    return measures_of(read_trajectory(run, metric))


def measures_of(way: Trajectory) -> dict[str, float]:
    """The same, of a run's way that is read already."""
    numbers: dict[str, float] = {}
    if len(way.server):
        numbers |= _series("global", way.server, way.every_round())
    if len(way.trained):
        local, by_site = way.trained.mean(axis=1), way.trained.mean(axis=0)
        numbers |= _series("local", local, consecutive=True)
        numbers |= {"worst_mean": float(way.trained.min(axis=1).mean()), "worst_site": float(by_site.min())}
    if "global_mean" in numbers and "local_mean" in numbers:
        numbers["balance"] = (numbers["global_mean"] + numbers["local_mean"]) / 2
    if way.every_round():
        numbers |= _transfer("bwt", way.global_at_sites, way) | _transfer("personal_change", way.personal_at_sites, way)
    return {name: numbers[name] for name in MEASURES if name in numbers}


def missing(run: RunRecord, metric: str) -> list[str]:
    """Why measures are missing, as sentences that say what to do."""
    return missing_of(run, read_trajectory(run, metric))


def missing_of(run: RunRecord, way: Trajectory) -> list[str]:
    """Return the reasons for missing measures, given a trajectory that was already read."""
    reasons = []
    if not len(way.server):
        reasons.append("Without a global model and a test set at the server there are no global measures.")
    if not len(way.trained):
        scored = "trained" in run.settings.moments
        moments = "scores right after training: `--moments \"['aggregated', 'trained']\"`"
        reasons.append(f"Local measures need {OWN_TESTS if scored else moments}.")
    if way.is_scored:
        reasons += _missing_changes(way)
    return reasons


def _missing_changes(way: Trajectory) -> list[str]:
    """Return the reasons why global consistency, backward transfer or the personal models' change are missing."""
    shared, personal = _took_part(way.global_at_sites, way), _took_part(way.personal_at_sites, way)
    reasons = []
    if not way.every_round():
        names = "backward transfer" if shared or not personal else "the personal models' change"
        reasons.append(f"Global consistency and {names} need scores after every round: `--evaluate_every 1`.")
    if not shared and not personal:
        reasons.append(f"Backward transfer needs {OWN_TESTS}.")
    elif not shared:
        reasons.append(
            "Backward transfer is not defined: it needs the global model's scores on the sites' test images, and only "
            "personal models were scored there. Their change is under 'Other readings'."
        )
    return reasons


def forgetting_table(groups: Sequence[Group], metric: str) -> pd.DataFrame:
    """One row for each group and measure.

    Args:
        groups: Runs that differ only in their seed and fold.
        metric: As `measures` takes it.

    Returns:
        Columns: label, seeds (with the measure, and with their folds), metric, measure, mean, std (over these runs,
        ddof = 1).
    """
    rows = []
    for group in groups:
        table = pd.DataFrame([measures(run, metric) for run in group.runs])
        for name in [name for name in MEASURES if name in table]:
            values = table[name].dropna()
            seeds = repetitions([group.runs[place] for place in values.index])
            rows.append((group.label, seeds, metric, name, values.mean(), values.std(ddof=1)))
    return pd.DataFrame(rows, columns=["label", "seeds", "metric", "measure", "mean", "std"])


def _series(name: str, scores: pd.Series[float], consecutive: bool) -> dict[str, float]:
    values = [float(value) for value in scores]
    numbers = {f"{name}_mean": fmean(values), f"{name}_std": pstdev(values), f"{name}_final": values[-1]}
    if consecutive:
        for mode in get_args(Mode):
            suffix = "" if mode == "literal" else f"_{mode}"
            numbers[f"consistency_{name}{suffix}"] = consistency(values, mode).value
        numbers[f"intervals_{name}"] = len(consistency(values).intervals)
    return numbers


def _took_part(scores: pd.DataFrame, way: Trajectory) -> bool:
    """Return whether any site with scores has trained: false if data are pooled or no site has a test set."""
    return any(not scores.columns.intersection(names).empty for names in way.participants.values())


def _transfer(name: str, table: pd.DataFrame, way: Trajectory) -> dict[str, float]:
    """Return a model's `backward_transfer` as ``NAME_mean`` and ``NAME_final``; empty if no scored site has trained."""
    if not _took_part(table, way):
        return {}
    rows: dict[int, dict[str, float]] = table.to_dict(orient="index")  # type: ignore[assignment]
    scores = {number: {site: value for site, value in row.items() if value == value} for number, row in rows.items()}
    values = [backward_transfer(scores, way.participants, number) for number in sorted(scores)]
    return {f"{name}_mean": fmean(values), f"{name}_final": values[-1]}
