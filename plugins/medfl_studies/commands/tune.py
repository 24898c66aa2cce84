"""``medfl tune``: good settings for the rows of a study, chosen on validation images alone."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from medfl_studies.tune.search import Search


def command(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="A study file (YAML) with a section `tune`.")],
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data.", show_default="$MEDFL_DATA")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write.", show_default="runs/<name>[-<scale>]-tune")
    ] = None,
    scale: Annotated[str, typer.Option(help="A scale of the study; `full` is the file as it stands.")] = "full",
    data: Annotated[str | None, typer.Option(help="The data set, where the study has several.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that train sites.", show_default="that of the bundle")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at the same time.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the first trials' commands, write nothing.")
    ] = False,
) -> None:
    """Look for good settings of a study's rows, each with the same budget of trials and of rounds.

    Trials are compared on validation images; test images stay closed. Written are a study file with the winners, which
    `medfl study` runs, and every trial. The same command again continues a search, to the same winners.

    Example:

        medfl tune studies/tune_breastmnist.yaml --source downloads --jobs 2
    """
    from medfl.utils.formats import count
    from medfl_studies.tune.search import first_trials, load_search

    search = load_search(file, source, out, scale, workers, data)
    for problem in [*search.registry.problems, *search.notes]:
        typer.echo(f"warning: {problem}", err=True)
    budget = f"{count(search.trials, 'trial')} of {count(search.rounds, 'round')}"
    typer.echo(f"{count(len(search.spaces), 'row')} with {budget} each, by validation {search.metric}", err=True)
    if dry_run:
        for row, trials in first_trials(search).items():
            for trial in trials:
                typer.echo(shlex.join(search.job(row, trial).command()))
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the trials at work, too
    try:
        _carry_out(search, jobs)
    finally:
        signal.signal(signal.SIGTERM, before)


def _carry_out(search: Search, jobs: int) -> None:
    """Search, and name the winners, the price and the files."""
    from medfl_studies.tune.price import price_sentence
    from medfl_studies.tune.results import next_command, write_results
    from medfl_studies.tune.search import run_search

    tuned = run_search(search, at_once=jobs)
    paths = write_results(search, tuned)
    for row, result in tuned.winners.items():
        values = ", ".join(f"{name}={value}" for name, value in result.trial.parameters.items())
        typer.echo(f"{row}: trial {result.trial.number}, {values} (validation {search.metric} {result.score:.4f})")
    for price in tuned.prices:
        typer.echo(price_sentence(price))
    for path in paths:
        typer.echo(path)
    typer.echo(f"next: {next_command(search)}")
