"""Command ``medfl study``: run the methods and seeds of study files, and write tables that compare them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from medfl_studies.study import CheckedStudy


def command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Study files (YAML), run one after the other.")
    ],
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the source data.", show_default="$MEDFL_DATA")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Output folder. With several study files, each gets a subfolder with its name.",
            show_default="runs/<name>[-<scale>]",
        ),
    ] = None,
    scale: Annotated[str, typer.Option(help="Scale of the study; `full` leaves the file unchanged.")] = "full",
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.", show_default="as in the study")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Data set of the study to use; can be repeated.", show_default="all")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes that train sites.", show_default="as in the bundle")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Number of runs at the same time. With many of them --workers 1 is fastest.")
    ] = 1,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove the state of each finished run, as `medfl clean` does.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the study and print its commands, without writing anything.")
    ] = False,
) -> None:
    """Run the methods and seeds of study files, and write tables that compare them.

    All files are checked before the first run. Give the same command again to continue: finished runs are not repeated.
    If a run fails, the table names it, the other runs continue, and the exit status is 1. Most of the disk space of a
    long study is the state that finished runs keep for being continued: --clean removes it once no attack needs it.

    Example: medfl study studies/medmnist_quick.yaml --source downloads --scale cpu --jobs 2
    """
    from medfl_studies.study import list_commands, load_study

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
        for line in [line for prepared in studies for line in list_commands(prepared)]:
            typer.echo(line)
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # also ends the current run
    try:
        finished = [_run_one_study(prepared, jobs, clean) for prepared in studies]
    finally:
        signal.signal(signal.SIGTERM, before)
    if not all(finished):
        raise typer.Exit(1)


def _run_one_study(prepared: CheckedStudy, jobs: int, clean: bool) -> bool:
    """Run a study, print its result files and unfinished runs, and return whether all runs are finished."""
    from medfl.cli.clean import clean as clean_run
    from medfl_studies.study import run_study

    outcome = run_study(prepared, at_once=jobs, clean=clean_run if clean else None)
    for path in sorted((prepared.out / "results").iterdir()):
        typer.echo(path)
    unfinished = outcome.unfinished()
    for job in unfinished:
        typer.echo(f"{outcome.status[job]}: {job.title}; see {job.log}", err=True)
    return not unfinished
