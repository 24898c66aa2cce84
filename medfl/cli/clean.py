"""``medfl clean``: free the room that finished runs no longer need."""

from __future__ import annotations

import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from medfl.engine.runs.facts import read_facts, sites_without_bundle, without_logs
from medfl.errors import StoreError
from medfl.hooks import ATTACKS_FOLDER
from medfl.records.run_file import RunFile
from medfl.records.summary import Summary
from medfl.utils.files import bytes_in
from medfl.utils.formats import size

KNOWN = (
    *(".lock", "run.json", "metrics.csv", "progress.jsonl", "summary.json", "report.html", "state", "sites", "global"),
    *("findings.safetensors", ATTACKS_FOLDER, "kept"),
    *("mlflow.json", "mlruns", "mlruns.db*", "config_*.json"),
    "study.json",
    ".*.tmp",
)
"""What stands at the top of a run folder: the run's own, what attacks found, models of earlier rounds, what MONAI's
tracking leaves, a study's, a kill's."""


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", show_default=False)],
    everything: Annotated[bool, typer.Option("--all", help="Remove the whole run folder, finished or not.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask before --all.")] = False,
) -> None:
    """Remove what finished runs no longer need: the state that would continue them.

    Scores, summary, report, bundles and kept models of rounds stay. A run that was cleaned can't be continued with
    more rounds.

    Example: medfl clean runs/fedavg runs/local
    """
    from medfl.utils.locks import being_written

    folders = list(dict.fromkeys(_check(folder, everything) for folder in without_logs(runs)))
    for folder in folders:
        if being_written(folder):
            raise StoreError(
                "folder_in_use",
                f"'{folder}' is being written now. Wait for it, or stop it; nothing was removed.",
                path=folder,
            )
    if everything and not yes:
        names = "\n".join(f"  {folder} ({size(bytes_in(folder))})" for folder in folders)
        if not typer.confirm(f"Remove these runs with their scores and models?\n{names}\n"):
            typer.echo("nothing was removed")
            return
    for folder in folders:
        freed = remove(folder) if everything else clean(folder)
        typer.echo(f"{folder}: {size(freed)} freed")


def clean(folder: Path) -> int:
    """Remove a finished run's state, and note in ``run.json`` that it was.

    Returns:
        Bytes freed.

    Raises:
        StoreError: If the run is not finished, is being written, or can't be written.
    """
    from medfl.engine.store import only_writer

    with only_writer(folder):
        _check(folder, everything=False)  # again: nobody else can change it any more
        run, _ = read_facts(folder)
        run.model_copy(update={"cleaned": True}).write(folder / RunFile.NAME)
        return _delete(folder / "state")


def remove(folder: Path) -> int:
    """Remove a run folder.

    Returns:
        Bytes freed.

    Raises:
        StoreError: If it holds what no run writes, is being written, or can't be removed.
    """
    from medfl.engine.store import only_writer

    with only_writer(folder):
        _check(folder, everything=True)
        return _delete(folder)


def _check(folder: Path, everything: bool) -> Path:
    """The absolute path of a run folder from which the state, or everything, may be removed."""
    for path in (folder, folder / "state"):
        if path.is_symlink():
            raise StoreError(
                "linked_folder",
                f"'{path}' is a link. Give the folder itself, with its state in it; nothing was removed.",
                path=path,
            )
    folder = folder.resolve()
    run, summary = read_facts(folder)
    if everything:
        _check_names(folder)
    else:
        _check_finished(folder, run, summary)
    return folder


def _check_names(folder: Path) -> None:
    foreign = sorted(path.name for path in folder.iterdir() if not _written_by_a_run(path))
    if foreign:
        raise StoreError(
            "foreign_file",
            f"'{folder}' holds what no run writes: {', '.join(foreign)}. Move that away first; nothing was removed.",
            path=folder,
            names=foreign,
        )


def _check_finished(folder: Path, run: RunFile, summary: Summary | None) -> None:
    status = "stopped" if summary is None else summary.status
    if status != "finished":
        raise StoreError(
            "unfinished_run",
            f"The run in '{folder}' is {status}, not finished: its state is what continues it. "
            "Let the same command finish it, or remove the whole run with --all. Nothing was removed.",
            path=folder,
            status=status,
        )
    missing = sites_without_bundle(folder, run)
    if missing:
        raise StoreError(
            "missing_bundles",
            f"The run in '{folder}' is finished, but the bundles of {len(missing)} sites are not there, "
            "and they are made from its state. Let the same command write them, or remove the whole run with --all. "
            "Nothing was removed.",
            path=folder,
            count=len(missing),
        )


def _written_by_a_run(path: Path) -> bool:
    return any(fnmatchcase(path.name, pattern) for pattern in KNOWN)


def _delete(folder: Path) -> int:
    freed = bytes_in(folder)
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise StoreError(
            "unremovable_folder",
            f"'{folder}' can't be removed: {error.strerror}. Remove what is left of it by hand.",
            path=folder,
            reason=error.strerror,
        ) from None
    return freed
