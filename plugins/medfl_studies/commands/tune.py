"""Command ``medfl tune``: search for good settings of a study's rows, using validation images only."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from medfl_studies.tune.search import Search


def command(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="Study file (YAML) with a section `tune`.")],
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the source data.", show_default="$MEDFL_DATA")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output folder.", show_default="runs/<name>[-<scale>]-tune")
    ] = None,
    scale: Annotated[str, typer.Option(help="Scale of the study; `full` leaves the file unchanged.")] = "full",
    data: Annotated[str | None, typer.Option(help="Name of the data set, if the study has several.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes that train sites.", show_default="as in the bundle")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of trials at the same time.")] = 1,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check the study and print the commands of the first trials, without writing anything."
        ),
    ] = False,
) -> None:
    """Search for good settings of a study's rows, with the same budget of trials and rounds for each row.

    Trials are compared on validation images; test images are not used. The command writes a study file with the best
    settings, to run with `medfl study`, and the results of all trials. Give the same command again to continue a
    search, with the same outcome.

    Example: medfl tune studies/tune_breastmnist.yaml --source downloads --jobs 2
    """
    from medfl.utils.formats import count
    from medfl_studies.tune.search import first_trials, load_searches

    searches = load_searches(file, source, out, scale, workers, data)
    search = searches[0]
    for problem in [*search.registry.problems, *search.notes]:
        typer.echo(f"warning: {problem}", err=True)
    budget = f"{count(search.trials, 'trial')} of {count(search.rounds, 'round')}"
    splits = "" if search.split is None else f" in each of {count(len(searches), 'split')}"
    rows = count(len(search.spaces), "row")
    typer.echo(f"{rows} with {budget} each{splits}, by validation {search.metric}", err=True)
    if dry_run:
        for part in searches:
            for row, trials in first_trials(part).items():
                for trial in trials:
                    typer.echo(shlex.join(part.job(row, trial).command()))
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # also ends the current trials
    try:
        _run_searches(searches, jobs)
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_searches(searches: list[Search], jobs: int) -> None:
    """Run the searches of a study, and print the best trials, the privacy costs and the written files."""
    from medfl_studies.tune.privacy_cost import describe_privacy_cost
    from medfl_studies.tune.search import run_search
    from medfl_studies.tune.search_report import follow_up_command, format_parameters, write_search_reports

    results = []
    for search in searches:
        tuned = run_search(search, at_once=jobs)
        results.append(tuned)
        place = "" if search.split is None else f"{search.split}, "
        for row, result in tuned.winners.items():
            values, score = format_parameters(result.trial.parameters), f"{result.score:.4f}"
            typer.echo(f"{place}{row}: trial {result.trial.number}, {values} (validation {search.metric} {score})")
        for cost in tuned.privacy_costs:
            typer.echo(f"{place}{describe_privacy_cost(cost)}")
    for path in write_search_reports(searches, results):
        typer.echo(path)
    typer.echo(f"next: {follow_up_command(searches[0])}")
