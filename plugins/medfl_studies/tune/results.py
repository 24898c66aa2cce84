"""What a search leaves: the study file of its winners, and every trial as JSON, CSV and Markdown."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pandas as pd
import yaml

from medfl.bundle.files import shipped
from medfl.metrics import LOWER_IS_BETTER
from medfl.types import Meta
from medfl.utils.files import write_atomic
from medfl.utils.formats import count, csv_table, duration, table_lines
from medfl_studies.preps import sized
from medfl_studies.records.study_files import Result, SearchOutcome, SearchRecord
from medfl_studies.schema import Study
from medfl_studies.tune.history import History
from medfl_studies.tune.price import price_sentence
from medfl_studies.tune.search import Search, Tuned
from medfl_studies.tune.space import with_parameters
from medfl_studies.tune.trials import goodness

HOW = {
    "grid": "every combination of the values",
    "random": "combinations drawn at random",
    "tpe": "combinations that TPE chooses one after the other",
}
"""Sampler to how it chooses trials."""


def write_results(search: Search, tuned: Tuned) -> list[Path]:
    """Write all files of a search that is over.

    Args:
        search: The search.
        tuned: What it came to.

    Returns:
        The study file with the winners, the page, the table, and the record.
    """
    out = search.out
    study, page, table = tuned_file(search), out / "search.md", out / "search.csv"
    write_atomic(study, _study_text(search, tuned).encode())
    write_atomic(table, csv_table(_table(search, tuned)).encode())
    History(out, search.definition()).write(
        SearchOutcome(
            trials=search.trials,
            rounds=search.rounds,
            score=search.tuning.score,
            seed=search.study.seed_list()[0],
            winners={row: result.trial.number for row, result in tuned.winners.items()},
            prices=tuple(tuned.prices),
        )
    )
    write_atomic(page, _page(search, tuned).encode())
    return [study, page, table, out / SearchRecord.NAME]


def tuned_file(search: Search) -> Path:
    """The study file with the winners."""
    return search.out / f"{search.study.name}-tuned.yaml"


def next_command(search: Search) -> str:
    """The command that runs the winners with all seeds, on the data that are prepared already."""
    source = "" if search.source is None else f" --source {search.source}"
    return f"medfl study {tuned_file(search)}{source} --out {search.out}"


def tuned_study(search: Search, tuned: Tuned) -> Study:
    """The study with the winners in its rows, as it stands at its scale."""
    study = search.study
    rows = {
        name: with_parameters(row, tuned.winners[name].trial.parameters) if name in tuned.winners else row
        for name, row in study.rows.items()
    }
    data = {}
    for name, part in study.data.items():
        preps = {key: getattr(part, key) for key in ("prep", "public")}
        fixed = {key: sized(prep, part.size, search.registry) for key, prep in preps.items() if prep is not None}
        data[name] = part.model_copy(update=fixed)
    bundle = next(iter(search.jobs.values())).bundle
    named = study.bundle if bundle == shipped().get(study.bundle) else os.path.relpath(bundle, search.out)
    about = f"{study.about} {_summary(search)}".strip()
    changes = {"name": f"{study.name}-tuned", "about": about, "bundle": named, "rows": rows, "data": data, "tune": None}
    return study.model_copy(update=changes)


def _study_text(search: Search, tuned: Tuned) -> str:
    values = tuned_study(search, tuned).model_dump(mode="json", exclude_defaults=True)
    return "# Written by medfl tune; the search is beside it.\n" + yaml.safe_dump(values, sort_keys=False, width=110)


def _summary(search: Search) -> str:
    """What was done, in a sentence or two."""
    over = {"mean": "mean over the sites", "worst": "worst site"}[search.tuning.score]
    return (
        f"Rows were tuned by medfl tune ({search.tuning.sampler}): {count(search.trials, 'trial')} of "
        f"{count(search.rounds, 'round')} for each, compared by {search.metric} on validation images ({over}, "
        f"seed {search.study.seed_list()[0]})."
    )


def _table(search: Search, tuned: Tuned) -> pd.DataFrame:
    """Return a line for each trial."""
    names = list(dict.fromkeys(axis.name for space in search.spaces.values() for axis in space.axes))
    lines = []
    for result in tuned.results:
        facts: Meta = {"row": result.row, "trial": result.trial.number}
        facts |= {"status": result.status, "score": result.score, "winner": result == tuned.winners[result.row]}
        facts |= {name: result.trial.parameters.get(name) for name in names}
        lines.append(facts | {"seconds": result.seconds})
    return pd.DataFrame(lines)


def _page(search: Search, tuned: Tuned) -> str:
    parts = [
        f"# {search.study.name}: a search on {search.data}\n",
        f"{_summary(search)} Tried were {HOW[search.tuning.sampler]}. No test image was opened.\n",
        _facts(search, tuned),
        _winners(search, tuned),
    ]
    parts += [_trials(search, row, [result for result in tuned.results if result.row == row]) for row in search.spaces]
    parts.append(f"The tuned study with all its seeds:\n\n```sh\n{next_command(search)}\n```\n")
    return "\n".join(parts)


def _facts(search: Search, tuned: Tuned) -> str:
    smaller = search.metric in LOWER_IS_BETTER
    lines = [
        f"Each row had the same budget: {count(search.trials, 'trial')} of {count(search.rounds, 'round')}. "
        f"{'Smaller' if smaller else 'Larger'} scores are better; of equals the first trial wins.",
        f"All trials had one seed, {search.study.seed_list()[0]}: the score of a winner is the best of several on the "
        "images that chose it, so it flatters. What it is worth is told by the tuned study, on test images and over "
        "its seeds.",
        "Seconds are those of the sites' training and scoring, together.",
    ]
    lines += search.notes
    for price in tuned.prices:
        ledgers = "Each trial is charged to the sites' ledgers, and so are the runs of the tuned study, on top."
        chosen = "That a winner was chosen by validation scores is not covered."
        lines.append(f"{price_sentence(price)} {ledgers} {chosen}")
    if len(tuned.prices) > 1:
        lines.append("These prices are of unlike promises for the same data, and add up.")
    return "\n".join(f"- {line}" for line in lines) + "\n"


def _winners(search: Search, tuned: Tuned) -> str:
    lines = [["row", "winner", "parameters", f"validation {search.metric}", "time of its search"]]
    for row, result in tuned.winners.items():
        last = {known.run: known.seconds for known in tuned.results if known.row == row}
        seconds = duration(sum(last.values()))
        lines.append([row, f"trial {result.trial.number}", _words(result.trial.parameters), _score(result), seconds])
    return f"{table_lines(lines)}\n"


def _trials(search: Search, row: str, results: list[Result]) -> str:
    """Return a table of a row's trials, the best first and those without a score last."""
    names = [axis.name for axis in search.spaces[row].axes]
    lines = [["trial", *names, f"validation {search.metric}", "seconds"]]
    for result in sorted(results, key=lambda result: -_or_lowest(goodness(result.score, search.metric))):
        values = [f"`{result.trial.parameters[name]}`" for name in names]
        score = _score(result) if result.status == "finished" else result.status
        lines.append([str(result.trial.number), *values, score, f"{result.seconds:.1f}"])
    return f"### {row}\n\n{table_lines(lines)}\n"


def _or_lowest(value: float | None) -> float:
    return -math.inf if value is None else value


def _words(parameters: Meta) -> str:
    return ", ".join(f"`{name}` {value}" for name, value in parameters.items())


def _score(result: Result) -> str:
    return "-" if result.score is None else f"{result.score:.4f}"
