"""Command ``medfl study``: run the methods and seeds of study files, and write tables that compare them."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfl.errors import SettingsError
from medfl_studies.launchers.slurm_commands import SlurmCommands, user_options

if TYPE_CHECKING:
    from medfl_studies.launchers.launcher import JobLauncher
    from medfl_studies.study import CheckedStudy


class LauncherName(StrEnum):
    """Names of the launchers of studies."""

    LOCAL = "local"
    SLURM = "slurm"


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
    seed: Annotated[
        list[int] | None, typer.Option(min=0, help="Seed to use; can be repeated.", show_default="as in the study")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Data set of the study to use; can be repeated.", show_default="all")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes that train sites.", show_default="as in the bundle")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of runs at the same time. With many of them --workers 1 is fastest.",
            show_default="1; no limit with --launcher slurm",
        ),
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove the state of each finished run, as `medfl clean` does.")
    ] = False,
    launcher: Annotated[
        LauncherName, typer.Option(help="Where the runs work: on this machine, or as jobs of a Slurm cluster.")
    ] = LauncherName.LOCAL,
    partition: Annotated[str | None, typer.Option(help="Slurm partition of all jobs.")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account of all jobs.")] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Further option of sbatch, such as --sbatch=--qos=low; can be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the study and print its commands, without writing anything.")
    ] = False,
) -> None:
    """Run the methods and seeds of study files, and write tables that compare them.

    All files are checked before the first run. Give the same command again to continue: finished runs are not repeated.
    If a run fails, the table names it, the other runs continue, and the exit status is 1. Most of the disk space of a
    long study is the state that finished runs keep for being continued: --clean removes it once no attack needs it.

    With --launcher slurm each run is a job of a Slurm cluster with the resources of its row, as in `medfl study
    study.yaml --launcher slurm --partition gpu --jobs 20`. The command waits for the jobs and writes the tables. If it
    is killed, the same command finds its jobs again.

    Example: medfl study studies/medmnist_quick.yaml --source downloads --scale cpu --jobs 2
    """
    from medfl_studies.study import list_commands, load_study
    from medfl_studies.study_reader import choose_seeds

    chosen = choose_seeds(seeds, seed)
    places = [out / file.stem if out and len(files) > 1 else out for file in files]
    studies = [
        load_study(file, source, place, scale, chosen, workers, data or ())
        for file, place in zip(files, places, strict=True)
    ]
    _print_warnings(studies)
    options = _slurm_options(launcher, partition, account, sbatch or ())
    launchers = [_make_launcher(prepared, launcher, options, jobs) for prepared in studies]
    if dry_run:
        for line in [line for prepared in studies for line in list_commands(prepared)]:
            typer.echo(line)
        return
    with _interrupted_by_termination():
        finished = [
            _run_one_study(prepared, study_launcher, clean)
            for prepared, study_launcher in zip(studies, launchers, strict=True)
        ]
    if not all(finished):
        raise typer.Exit(1)


def _print_warnings(studies: Sequence[CheckedStudy]) -> None:
    """Print the problems of plugins and the notes on the studies."""
    for prepared in studies:
        for problem in prepared.registry.problems:
            typer.echo(f"warning: {problem}", err=True)
        if prepared.note:
            typer.echo(f"warning: {prepared.note}", err=True)


def _slurm_options(
    launcher: LauncherName, partition: str | None, account: str | None, sbatch: Sequence[str]
) -> list[str]:
    """Return the user's options of sbatch.

    Raises:
        SettingsError: If there are some, but the runs work on this machine.
    """
    options = user_options(partition, account, sbatch)
    if launcher is LauncherName.LOCAL and options:
        raise SettingsError(
            "incompatible_settings",
            f"Expected --launcher slurm with the options of Slurm, got --launcher local with {' '.join(options)}.",
            settings=["launcher", "partition", "account", "sbatch"],
        )
    return options


@contextmanager
def _interrupted_by_termination() -> Iterator[None]:
    """Context manager in which SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does, so that the current run ends too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _make_launcher(prepared: CheckedStudy, name: LauncherName, options: list[str], jobs: int | None) -> JobLauncher:
    """Return the launcher of a study; with a cluster, check that it would accept the jobs."""
    from medfl_studies.launchers.local_launcher import LocalLauncher
    from medfl_studies.launchers.slurm_launcher import SlurmLauncher

    if name is LauncherName.LOCAL:
        return LocalLauncher(at_once=jobs or 1)
    launcher = SlurmLauncher(prepared.out, prepared.study.name, SlurmCommands(options), jobs)
    launcher.check(prepared.jobs)
    return launcher


def _run_one_study(prepared: CheckedStudy, launcher: JobLauncher, clean: bool) -> bool:
    """Run a study, print its result files and unfinished runs, and return whether all runs are finished."""
    from medfl.cli.clean import clean as clean_run
    from medfl_studies.study import run_study

    outcome = run_study(prepared, clean=clean_run if clean else None, launcher=launcher)
    for path in sorted((prepared.out / "results").iterdir()):
        typer.echo(path)
    unfinished = outcome.unfinished()
    for job in unfinished:
        typer.echo(f"{outcome.status[job]}: {job.title}; see {job.log}", err=True)
    return not unfinished
