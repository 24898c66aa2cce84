"""``medfl study``: methods times seeds, and the table that compares them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from medfl_studies.study import Prepared


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Study files (YAML), one after the other.")],
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data.", show_default="$MEDFL_DATA")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder to write; of several studies, each has one of its name in there.",
            show_default="runs/<name>[-<scale>]",
        ),
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
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove the state of each run that is finished, as `medfl clean` does.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the commands, write nothing.")
    ] = False,
) -> None:
    """Run the methods and seeds of study files, and write tables that compare them.

    All files are checked before the first run. The same command again continues: runs that are finished are left alone.
    A run that fails is named in the table, and the others go on; the status is then 1. What a finished run keeps to be
    continued takes most of the room of a long study: --clean removes it, once there is no attack left to make.

    Example: medfl study studies/medmnist_quick.yaml --source downloads --scale cpu --jobs 2
    """
    from medfl_studies.study import commands, load_study

    places = [out / file.stem if out and len(files) > 1 else out for file in files]
    studies = [
        load_study(file, source, place, scale, seeds, workers, data or ())
        for file, place in zip(files, places, strict=True)
    ]
    for prepared in studies:
        for problem in prepared.registry.problems:
            typer.echo(f"warning: {problem}", err=True)
        if prepared.note:
            typer.echo(f"warning: {prepared.note}", err=True)
    if dry_run:
        for line in [line for prepared in studies for line in commands(prepared)]:
            typer.echo(line)
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the run at work, too
    try:
        finished = [_carry_out(prepared, jobs, clean) for prepared in studies]
    finally:
        signal.signal(signal.SIGTERM, before)
    if not all(finished):
        raise typer.Exit(1)


def _carry_out(prepared: Prepared, jobs: int, clean: bool) -> bool:
    """Run a study and name its results, and the runs that are not finished; whether all are."""
    from medfl.cli.clean import clean as clean_run
    from medfl_studies.study import run_study

    outcome = run_study(prepared, at_once=jobs, clean=clean_run if clean else None)
    for path in sorted((prepared.out / "results").iterdir()):
        typer.echo(path)
    unfinished = outcome.unfinished()
    for job in unfinished:
        typer.echo(f"{outcome.status[job]}: {job.title}; see {job.log}", err=True)
    return not unfinished
