"""``medfl study``: methods times seeds, and the table that compares them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer


def command(
    file: Annotated[Path, typer.Argument(help="The study file (YAML).")],
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data.", show_default="$MEDFL_DATA")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write.", show_default="runs/<name>[-<scale>]")
    ] = None,
    scale: Annotated[str, typer.Option(help="A scale of the study; `full` is the file as it stands.")] = "full",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds.", show_default="those of the study")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="A data set of the study; may be given again.", show_default="all")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that train sites.", show_default="that of the bundle")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs at the same time. With enough of them --workers 1 is fastest.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the commands, write nothing.")
    ] = False,
) -> None:
    """Run the methods and seeds of a study file, and write a table that compares them.

    The same command again continues: runs that are finished are left alone. A run that fails is named in the table,
    and the others go on; the status is then 1.
    """
    from medfl.studies.study import commands, load_study, run_study

    prepared = load_study(file, source, out, scale, seeds, workers, data or ())
    for problem in prepared.registry.problems:
        typer.echo(f"warning: {problem}", err=True)
    if prepared.note:
        typer.echo(f"warning: {prepared.note}", err=True)
    if dry_run:
        for line in commands(prepared):
            typer.echo(line)
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the run at work, too
    try:
        outcome = run_study(prepared, at_once=jobs)
    finally:
        signal.signal(signal.SIGTERM, before)
    for path in sorted((prepared.out / "results").iterdir()):
        typer.echo(path)
    unfinished = outcome.unfinished()
    for job in unfinished:
        typer.echo(f"{outcome.status[job]}: {job.title}; see {job.log}", err=True)
    if unfinished:
        raise typer.Exit(1)
