"""Tables that compare the methods of a study as published and tuned, with the cost of the tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.metrics import LOWER_IS_BETTER_METRICS
from medfl.utils.formats import duration
from medfl_studies.results.page_formats import cell, mean_cell, table
from medfl_studies.results.page_statistics import DataScores, Estimate, compare_family
from medfl_studies.results.recorded_study import run_key

TUNED = ", tuned"
"""Ending of the name of a tuned row in a comparison."""


def fair_table(published: DataScores, tuned: DataScores, effects: Mapping[str, Estimate | None]) -> str:
    """Return a table with a row for each method: score and difference to its baseline, as published and tuned.

    All differences of the table are one family, which Holm's procedure corrects. If a model has no score at some sites
    because its training diverged, the number of sites with a score follows the mean.

    Args:
        published: Scores of the study with the methods' own settings.
        tuned: Scores of the study that ``medfl tune`` wrote, on the same splits.
        effects: Result of `compare_both`, which is slow and which the sentences of a page need, too.
    """
    head = ["method", "sites weigh by", "as published", "difference to", "effect"]
    head += ["tuned", "difference, tuned", "effect, tuned", "worst site, tuned", "time of tuning"]
    sites, sites_tuned = _sites_with_score(published), _sites_with_score(tuned)
    lines = []
    for row in published.rows:
        ours, better = effects[row], effects.get(row + TUNED)
        is_tuned = row in tuned.rows
        lines.append(
            [
                row,
                published.weighting(row),
                mean_cell(published.mean(row)) + sites[row],
                f"{published.baseline(row)}: {cell(ours, '+')}" if ours else "",
                ours.effect if ours else "",
                mean_cell(tuned.mean(row)) + sites_tuned[row] if is_tuned else "not run",
                cell(better, "+") if better else "",
                better.effect if better else "",
                cell(tuned.worst(row)) if is_tuned else "",
                duration(tuned.results.trial_seconds(row)) if is_tuned else "",
            ]
        )
    return table(head, lines)


def _sites_with_score(scores: DataScores) -> dict[str, str]:
    """Return for each row the numbers of sites with a score in its runs, such as `` (3 to 6 of 11 sites)``.

    The text is empty for a row that has in each run as many as any other row with the same seed.
    """
    numbers = {
        row: {run.seed: sum(run.score(site, scores.metric) is not None for site in run.sites) for run in group.runs}
        for row in scores.rows
        for group in [scores.group(row)]
    }
    most: dict[int, int] = {}
    for by_seed in numbers.values():
        most |= {seed: max(number, most.get(seed, 0)) for seed, number in by_seed.items()}
    texts = {}
    for row, by_seed in numbers.items():
        low, high = min(by_seed.values()), max(by_seed.values())
        span = f"{low}" if low == high else f"{low} to {high}"
        is_complete = all(number == most[seed] for seed, number in by_seed.items())
        texts[row] = "" if is_complete else f" ({span} of {max(most.values())} sites)"
    return texts


def compare_both(published: DataScores, tuned: DataScores) -> dict[str, Estimate | None]:
    """Return the difference of each row from its baseline; None for a baseline itself.

    Args:
        published: Scores of the study with the methods' own settings.
        tuned: Scores of the tuned study; the names of its rows get the ending `TUNED`.
    """
    return compare_family({"": published, TUNED: tuned})


def choose_on_validation(published: DataScores, tuned: DataScores) -> DataScores:
    """Return the tuned scores with the published run wherever it is at least as good on validation images.

    So a row's own settings are one more trial of its search in each split, and no row loses by an unlucky search. Test
    images decide nothing. As in a search, a run with validation scores at fewer sites, because training diverged there,
    is not chosen.

    Args:
        published: Scores of the study with the methods' own settings.
        tuned: Scores of the study that ``medfl tune`` wrote, on the same splits.
    """
    sign = -1 if tuned.metric in LOWER_IS_BETTER_METRICS else 1
    own = {run_key(kept): run for kept, run in zip(published.results.raw.runs, published.results.runs, strict=True)}
    chosen = []
    for kept, run in zip(tuned.results.raw.runs, tuned.results.runs, strict=True):
        candidate = own[run_key(kept)]
        ours, theirs = (_last_validation_score(each, tuned.metric) for each in (run, candidate))
        is_as_good = (theirs[0], sign * theirs[1]) >= (ours[0], sign * ours[1])
        chosen.append(candidate if is_as_good else run)
    return DataScores(replace(tuned.results, runs=tuple(chosen)), tuned.data, tuned.metric)


def _last_validation_score(run: RunRecord, metric: str) -> tuple[int, float]:
    """Return the number of sites whose exported model has a score in the last evaluated round, and the mean score."""
    chosen = _exported_scores(run, metric)
    last = chosen.loc[chosen["round"] == chosen["round"].max(), "value"].dropna()
    return len(last), float(last.mean())


def validation_table(scores: DataScores) -> str:
    """Return a table of validation scores over the rounds, which shows whether training has ended.

    The last column is the change from the evaluation before the last one to the last one.

    Args:
        scores: Scores of a study with validation images.
    """
    curves = {row: validation_curve(scores, row) for row in scores.rows}
    rounds = sorted(set().union(*curves.values()))
    lines = [
        [row, *(cell(curve.get(number)) for number in rounds), cell(last_rise(curve), "+")]
        for row, curve in curves.items()
    ]
    return table(["row", *(f"round {number}" for number in rounds), "last change"], lines)


def last_rise(curve: Mapping[int, float]) -> float:
    """Return the change of a validation curve from the evaluation before the last one to the last one."""
    before, last = sorted(curve)[-2:]
    return curve[last] - curve[before]


def still_rising(scores: DataScores, margin: float = 0.01) -> list[str]:
    """Return the rows whose validation score rises by more than a margin from the last evaluation but one to the last.

    Args:
        scores: Scores of a study with validation images, larger values of the metric are better.
        margin: The margin.
    """
    return [row for row in scores.rows if last_rise(validation_curve(scores, row)) > margin]


def validation_curve(scores: DataScores, row: str) -> dict[int, float]:
    """Return the validation score of the models that the sites export, by round: mean over the sites and the runs."""
    by_round: dict[int, list[float]] = {}
    for run in scores.group(row).runs:
        for number, value in _validation_scores(run, scores.metric).items():
            by_round.setdefault(number, []).append(value)
    return {number: fmean(values) for number, values in sorted(by_round.items())}


def _validation_scores(run: RunRecord, metric: str) -> dict[int, float]:
    """Return the validation score of the models that the sites export, by round: mean over the sites."""
    by_round = _exported_scores(run, metric).groupby("round")["value"]
    return {int(str(number)): float(values.mean()) for number, values in by_round}


def _exported_scores(run: RunRecord, metric: str) -> pd.DataFrame:
    """Return the rows of a run's ``metrics.csv`` with validation scores of the models that the sites export."""
    metrics = run.metrics
    chosen = metrics[(metrics["split"] == "val") & (metrics["metric"] == metric)]
    return chosen[chosen["model"] == chosen["site"].map(run.exported_kind)]
