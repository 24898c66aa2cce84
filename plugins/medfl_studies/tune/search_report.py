"""Files that a search writes: a study file with the best settings, and all trials as JSON, CSV and Markdown.

A search runs trials of each row of a study: a row is a method with settings, a trial a run with other parameters.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import yaml

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.metrics import LOWER_IS_BETTER_METRICS
from medfl.types import Meta
from medfl.utils.files import write_atomic
from medfl.utils.formats import count, csv_table, duration, table_lines
from medfl_studies.preparation import with_image_size
from medfl_studies.records.study_files import SearchOutcome, SearchRecord, TrialResult
from medfl_studies.schema import RowChange, Study
from medfl_studies.tune.history import SearchHistory
from medfl_studies.tune.privacy_cost import describe_privacy_cost
from medfl_studies.tune.search import Search, SearchResult
from medfl_studies.tune.space import with_parameters
from medfl_studies.tune.trials import most_sites, score_to_maximize

SAMPLER_DESCRIPTIONS = {
    "grid": "every combination of the values",
    "random": "the row as it is, and combinations drawn at random",
    "tpe": "the row as it is, and combinations that TPE proposes one after the other",
}
"""Maps each sampler to a description of the trials that it chooses."""

OWN_VALUE = "own"
"""Cell of a table for a field that has the row's own value."""


def write_search_reports(searches: Sequence[Search], results: Sequence[SearchResult]) -> list[Path]:
    """Write the reports of the finished searches of a study.

    The tuned study file goes to the output folder, and the other files to the folder of each search.

    Args:
        searches: The searches, one for each split of a nested study.
        results: Result of each search.

    Returns:
        Paths of the tuned study file, and of the Markdown page, the CSV table and the JSON record of each search.
    """
    paths = [tuned_study_path(searches[0])]
    write_atomic(paths[0], _tuned_study_yaml(searches, results).encode())
    for search, result in zip(searches, results, strict=True):
        paths += _write_search_report(search, result)
    return paths


def _write_search_report(search: Search, search_result: SearchResult) -> list[Path]:
    """Write the page, the table and the record of a search, and return their paths."""
    page, table = search.folder / "search.md", search.folder / "search.csv"
    write_atomic(table, csv_table(_trial_table(search, search_result)).encode())
    SearchHistory(search.folder, search.definition()).write(
        SearchOutcome(
            trials=search.trials,
            rounds=search.rounds,
            score=search.tuning.score,
            seed=search.seed,
            winners={row: result.trial.number for row, result in search_result.winners.items()},
            prices=tuple(search_result.privacy_costs),
        )
    )
    write_atomic(page, _search_markdown(search, search_result).encode())
    return [page, table, search.folder / SearchRecord.NAME]


def tuned_study_path(search: Search) -> Path:
    """Return the path of the study file with the best settings."""
    return search.out / f"{search.study.name}-tuned.yaml"


def follow_up_command(search: Search) -> str:
    """Return the command that runs the tuned study with all seeds, on the data that are already prepared."""
    source = "" if search.source is None else f" --source {search.source}"
    return f"medfl study {tuned_study_path(search)}{source} --out {search.out}"


def format_parameters(parameters: Meta) -> str:
    """Format the parameters of a trial; without any, the trial ran the row as it is."""
    return ", ".join(f"{name}={value}" for name, value in parameters.items()) or "as in the study"


def build_tuned_study(searches: Sequence[Search], results: Sequence[SearchResult]) -> Study:
    """Return the study with its image sizes fixed and the best settings in its rows.

    In a nested search, each split (a seed or fold) has its own settings.
    """
    search = searches[0]
    study, rows = search.study, dict(search.study.rows)
    for searched, search_result in zip(searches, results, strict=True):
        for name, best in search_result.winners.items():
            row, tuned = rows[name], with_parameters(study.rows[name], best.trial.parameters)
            change = RowChange(method_args=tuned.method_args, settings=tuned.settings)
            rows[name] = (
                tuned
                if searched.split is None
                else row.model_copy(update={"splits": row.splits | {searched.split: change}})
            )
    data = {}
    for name, part in study.data.items():
        preps = {key: getattr(part, key) for key in ("prep", "public")}
        fixed = {
            key: with_image_size(prep, part.size, search.registry) for key, prep in preps.items() if prep is not None
        }
        data[name] = part.model_copy(update=fixed)
    bundle = next(iter(search.jobs.values())).bundle
    named = study.bundle if bundle == shipped_bundles().get(study.bundle) else os.path.relpath(bundle, search.out)
    seeds = f"seed {search.seed}" if search.split is None else "separately in each split"
    about = f"{study.about} {_summary_sentence(search)[:-2]}, {seeds}).".strip()
    changes = {"name": f"{study.name}-tuned", "about": about, "bundle": named, "rows": rows, "data": data, "tune": None}
    return study.model_copy(update=changes)


def _tuned_study_yaml(searches: Sequence[Search], results: Sequence[SearchResult]) -> str:
    """Return the tuned study as YAML."""
    values = build_tuned_study(searches, results).model_dump(mode="json", exclude_defaults=True)
    return "# Written by medfl tune; the results of the search are in the same folder.\n" + yaml.safe_dump(
        values, sort_keys=False, width=110
    )


def _summary_sentence(search: Search) -> str:
    """Return one sentence that summarizes the search."""
    over = {"mean": "mean over the sites", "worst": "worst site"}[search.tuning.score]
    return (
        f"Rows were tuned by medfl tune ({search.tuning.sampler}): {count(search.trials, 'trial')} of "
        f"{count(search.rounds, 'round')} for each row, compared by {search.metric} on validation images ({over})."
    )


def _trial_table(search: Search, search_result: SearchResult) -> pd.DataFrame:
    """Build a table with a row for each trial."""
    names = list(dict.fromkeys(axis.name for space in search.spaces.values() for axis in space.axes))
    lines = []
    for result in search_result.results:
        row_fields: Meta = {"row": result.row, "trial": result.trial.number}
        row_fields |= {
            "status": result.status,
            "score": result.score,
            "sites": result.sites,
            "winner": result == search_result.winners[result.row],
        }
        row_fields |= {name: result.trial.parameters.get(name) for name in names}
        lines.append(row_fields | {"seconds": result.seconds})
    return pd.DataFrame(lines)


def _search_markdown(search: Search, search_result: SearchResult) -> str:
    """Return the page of the search in Markdown."""
    parts = [
        f"# {search.study.name}: search for settings on {search.data}\n",
        f"{_summary_sentence(search)} The trials are {SAMPLER_DESCRIPTIONS[search.tuning.sampler]}. No test image was "
        "used.\n",
        _notes_markdown(search, search_result),
        _winners_markdown(search, search_result),
    ]
    parts += [
        _trials_markdown(search, row, [result for result in search_result.results if result.row == row])
        for row in search.spaces
    ]
    parts.append(f"Run the tuned study with all seeds:\n\n```sh\n{follow_up_command(search)}\n```\n")
    return "\n".join(parts)


def _notes_markdown(search: Search, search_result: SearchResult) -> str:
    """Return notes on the search as a Markdown list."""
    smaller = search.metric in LOWER_IS_BETTER_METRICS
    lines = [
        f"Each row had the same budget: {count(search.trials, 'trial')} of {count(search.rounds, 'round')}. "
        f"{'Smaller' if smaller else 'Larger'} scores are better; among equal scores the first trial wins.",
        f"All trials had the seed {search.seed}. The score of a winner is the best of several scores "
        "on the images that selected it, so it is too optimistic. The tuned study measures the performance on test "
        "images and over all seeds.",
        "Seconds are the time of training and evaluation, summed over the sites.",
    ]
    lines += search.notes
    for cost in search_result.privacy_costs:
        ledgers = "Each trial is charged to the sites' privacy budget ledgers; the runs of the tuned study add to this."
        chosen = "The guarantee does not cover the selection of the best trial by validation scores."
        lines.append(f"{describe_privacy_cost(cost)} {ledgers} {chosen}")
    if len(search_result.privacy_costs) > 1:
        lines.append(
            "These guarantees are of different kinds for the same data. The data pay for all of them, but the epsilons "
            "can't be added."
        )
    return "\n".join(f"- {line}" for line in lines) + "\n"


def _winners_markdown(search: Search, search_result: SearchResult) -> str:
    """Return a table of the best trial of each row."""
    lines = [["row", "winner", "parameters", f"validation {search.metric}", "time of its search"]]
    for row, result in search_result.winners.items():
        last = {known.run: known.seconds for known in search_result.results if known.row == row}
        seconds = duration(sum(last.values()))
        lines.append(
            [
                row,
                f"trial {result.trial.number}",
                format_parameters(result.trial.parameters),
                _format_score(result),
                seconds,
            ]
        )
    return f"{table_lines(lines)}\n"


def _trials_markdown(search: Search, row: str, results: list[TrialResult]) -> str:
    """Return a table of a row's trials, the best first and trials without a score last."""
    names, most = [axis.name for axis in search.spaces[row].axes], most_sites(results)
    lines = [["trial", *names, f"validation {search.metric}", "seconds"]]

    def rank(result: TrialResult) -> tuple[int, float]:
        sites = most if result.sites is None else result.sites
        return -sites, -_or_lowest(score_to_maximize(result.score, search.metric))

    for result in sorted(results, key=rank):
        parameters = result.trial.parameters
        values = [f"`{parameters[name]}`" if parameters else OWN_VALUE for name in names]
        score = _format_score(result) if result.status == "finished" else result.status
        if result.score is not None and result.sites is not None and result.sites < most:
            score += f" (no score at {count(most - result.sites, 'site')})"
        lines.append([str(result.trial.number), *values, score, f"{result.seconds:.1f}"])
    return f"### {row}\n\n{table_lines(lines)}\n"


def _or_lowest(value: float | None) -> float:
    """Return the value, or minus infinity for None."""
    return -math.inf if value is None else value


def _format_score(result: TrialResult) -> str:
    """Format the score of a trial."""
    return "-" if result.score is None else f"{result.score:.4f}"
