"""Measures of forgetting of a run: global, local and worst accuracy, backward transfer, consistency, balance.

A trajectory is the test scores of one run in one metric, by round. Consistency is 1 minus the mean loss between a peak
of the scores and the recovery. Backward transfer is the change of a score since a site last took part in a round.

A group is a set of runs of one method that differ only in seed and fold.

Definitions: Fowler and AlRegib, ICIP 2026, section 3 and table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import get_args

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.metrics import LOWER_IS_BETTER_METRICS, UNBOUNDED_METRICS
from medfl_report.forgetting_scores import Mode, backward_transfer, consistency
from medfl_report.groups import Group, repetitions
from medfl_report.scores import key_metrics
from medfl_report.trajectory import Trajectory, read_trajectory

MEASURES = {
    "global_mean": "server test, mean over the rounds",
    "global_std": "server test, standard deviation over the rounds",
    "global_final": "server test after the last round",
    "local_mean": "sites right after their training, mean over participants, then over rounds",
    "local_std": "sites right after their training, standard deviation over the rounds of the participants' mean",
    "local_final": "sites right after their training in the last round",
    "worst_mean": "worst participant right after its training, mean over the rounds",
    "worst_site": "lowest mean of a site over the rounds in which it trained",
    "balance": "mean of global_mean and local_mean",
    "bwt_mean": "backward transfer of the global model, mean over the rounds",
    "bwt_final": "backward transfer of the global model at the last round",
    "personal_change_mean": "change of the sites' personal models since each site last took part, mean over the rounds",
    "personal_change_final": "change of the sites' personal models since each site last took part, at the last round",
    "consistency_global": "server test: 1 minus the mean forgetting between a peak and its recovery",
    "consistency_global_open": "consistency_global, including an interval without recovery",
    "consistency_global_clipped": "consistency_global with losses only",
    "intervals_global": "number of intervals in consistency_global",
    "consistency_local": "sites right after their training, mean over participants: as consistency_global",
    "consistency_local_open": "consistency_local, including an interval without recovery",
    "consistency_local_clipped": "consistency_local with losses only",
    "intervals_local": "number of intervals in consistency_local",
}
"""Maps each measure to its definition. Larger is better, except for standard deviations and numbers of intervals."""

CLAIMABLE = tuple(name for name in MEASURES if not name.endswith("_std") and not name.startswith("intervals_"))
"""Measures in which larger is better, so that a study can claim an ordering of methods."""


OWN_TESTS = "sites that train and have test images of their own"
"""Phrase for the sites that some measures require; a method that pools the sites' data has no such site."""


def forgetting_metric(groups: Sequence[Group]) -> str | None:
    """Return the metric in which forgetting is measured: accuracy if all runs have it, else another common metric.

    The metric is in [0, 1], and larger is better. None if the runs share no such metric.
    """
    names = [name for name in key_metrics(groups) if name not in LOWER_IS_BETTER_METRICS | UNBOUNDED_METRICS]
    return "accuracy" if "accuracy" in names else next(iter(names), None)


def measures(run: RunRecord, metric: str) -> dict[str, float]:
    """Return a mapping from each of the `MEASURES` that the scores of a run determine to the value.

    Each measure uses all rounds with the scores that it needs, also in a run that ended early. Undefined scores are
    left out. Standard deviations over rounds have ddof = 0.

    Args:
        run: A run, finished or not.
        metric: Metric of the run's task, in [0, 1], in which larger is better.
    """
    return measures_of(read_trajectory(run, metric))


def measures_of(way: Trajectory) -> dict[str, float]:
    """Return all `MEASURES` that a trajectory determines, as `measures` does for a run."""
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
    """Return sentences with the reasons for missing measures and their remedies.

    Args:
        run: A run.
        metric: Metric of the measures.
    """
    return missing_of(run, read_trajectory(run, metric))


def missing_of(run: RunRecord, way: Trajectory) -> list[str]:
    """Return sentences with the reasons for missing measures and their remedies, as `missing`, without reading the run.

    Args:
        run: A run.
        way: Trajectory of the run.
    """
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
            "personal models were scored there. Their change is under 'Further measures'."
        )
    return reasons


def forgetting_table(groups: Sequence[Group], metric: str) -> pd.DataFrame:
    """Return a table with a row for each group and measure.

    Args:
        groups: Groups of runs.
        metric: Metric of the runs' task, in [0, 1], in which larger is better.

    Returns:
        Columns: label, seeds (with the measure, and with their folds), metric, measure, mean and std (ddof = 1)
        over these runs.
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
    """Return mean, standard deviation and last value of scores by round; of consecutive rounds also consistencies."""
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
