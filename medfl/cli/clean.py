"""``medfl clean``: free the disk space that finished runs no longer need."""

from __future__ import annotations

import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from medfl.data.folders import CACHE_FOLDER
from medfl.engine.runs.run_files import exclude_logs, read_run_files, sites_without_bundle
from medfl.errors import StoreError
from medfl.hooks import ATTACKS_FOLDER
from medfl.records.run_file import RunFile
from medfl.records.summary import Summary
from medfl.utils.files import bytes_in
from medfl.utils.formats import count, size

RUN_FOLDER_PATTERNS = (
    *(".lock", "run.json", "metrics.csv", "progress.jsonl", "summary.json", "report.html", "state", "sites", "global"),
    *("findings.safetensors", ATTACKS_FOLDER, "kept"),
    *("mlflow.json", "mlruns", "mlruns.db*", "config_*.json"),  # MONAI's tracking
    "study.json",
    ".*.tmp",  # a process that was killed while it wrote
)
"""Patterns of the names that a run folder may contain at its top level."""


def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folder; several may be given.", show_default=False)
    ],
    everything: Annotated[
        bool, typer.Option("--all", help="Remove the whole run folder, also of an unfinished run.")
    ] = False,
    features: Annotated[
        bool,
        typer.Option("--features", help="Also delete the cached features of the runs' data, which all runs share."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking for confirmation.")] = False,
) -> None:
    """Remove the saved state of finished runs, which only serves to continue them.

    Scores, summary, report, bundles and models of earlier rounds stay. A run can't be continued with more rounds
    after that. Other runs on the same data compute deleted features again.

    Example: medfl clean runs/fedavg runs/local --features
    """
    from medfl.utils.locks import is_being_written

    folders = list(dict.fromkeys(_check(folder, everything) for folder in exclude_logs(runs)))
    for folder in folders:
        if is_being_written(folder):
            raise StoreError(
                "folder_in_use",
                f"A run is writing '{folder}' now. Wait until it ends, or stop it; nothing was removed.",
                path=folder,
            )
    caches = list(dict.fromkeys(cache for folder in folders for cache in feature_folders(folder))) if features else []
    if everything and not yes:
        names = "\n".join(f"  {folder} ({size(bytes_in(folder))})" for folder in [*folders, *caches])
        if not typer.confirm(f"Remove these runs with their scores and models?\n{names}\n"):
            typer.echo("nothing was removed")
            return
    for folder in folders:
        freed = remove(folder) if everything else clean(folder)
        typer.echo(f"{folder}: {size(freed)} freed")
    for cache in caches:
        files, freed = delete_features(cache)
        typer.echo(f"{cache}: {count(files, 'file')} of features deleted, {size(freed)} freed")
    if features and not caches:
        typer.echo("there are no cached features of the runs' data")


def feature_folders(folder: Path) -> list[Path]:
    """Return the folders with cached features of a run's data, sorted. Other runs on the same data share them.

    Features in the run's own state are not listed; they are removed with it.

    Args:
        folder: Run folder.

    Raises:
        StoreError: If the run was between machines, or the folder of its data or its ``cache_dir`` is missing.
    """
    from medfl.engine.runs.features.feature_cache import feature_files
    from medfl.engine.runs.records import read_run

    run = read_run(folder)
    if run.run.backend != "local":
        raise StoreError(
            "features_at_sites",
            f"The run in '{folder}' was between machines, and each site has the features of its own images. Ask the "
            f"sites to delete the folder '{CACHE_FOLDER}' in their data, or their 'cache_dir'. Nothing was removed.",
            path=folder,
        )
    cache_dir = run.run.execution.cache_dir
    place = run.data_folder if cache_dir is None else cache_dir
    if place is None:  # data in memory
        return []
    if not place.is_dir():
        raise StoreError(
            "missing_folder",
            f"Expected the {'data' if cache_dir is None else 'features'} of the run '{folder}' in '{place}', but there "
            f"is no such folder. Delete the features by hand: files 'features-*' and 'views-*' in each site's folder "
            f"'{CACHE_FOLDER}', or in its 'cache_dir'. Nothing was removed.",
            path=place,
        )
    return sorted(path for path in place.glob(f"*/{CACHE_FOLDER}" if cache_dir is None else "*") if feature_files(path))


def delete_features(cache: Path) -> tuple[int, int]:
    """Delete the cached features in a folder, and the folder if it is empty then.

    Args:
        cache: Folder of cached features.

    Returns:
        Number of deleted files, and number of bytes freed.

    Raises:
        StoreError: If a file can't be deleted.
    """
    from medfl.engine.runs.features.feature_cache import feature_files

    files, freed = feature_files(cache), 0
    try:
        for path in files:
            freed += path.lstat().st_size
            path.unlink()
        if not any(cache.iterdir()):
            cache.rmdir()
    except OSError as error:
        raise _unremovable(cache, error) from None
    return len(files), freed


def clean(folder: Path) -> int:
    """Delete the saved state of a finished run, and record that in its ``run.json``.

    Args:
        folder: Run folder.

    Returns:
        Number of bytes freed.

    Raises:
        StoreError: If the run is not finished, another process writes it, or the folder can't be written.
    """
    from medfl.engine.store import lock_for_writing

    with lock_for_writing(folder):
        _check(folder, everything=False)  # again, now that no other process can change the folder
        run, _ = read_run_files(folder)
        run.model_copy(update={"cleaned": True}).write(folder / RunFile.NAME)
        return _delete(folder / "state")


def remove(folder: Path) -> int:
    """Delete a run folder.

    Args:
        folder: Run folder.

    Returns:
        Number of bytes freed.

    Raises:
        StoreError: If the folder contains files that no run writes, another process writes it, or it can't be removed.
    """
    from medfl.engine.store import lock_for_writing

    with lock_for_writing(folder):
        _check(folder, everything=True)
        return _delete(folder)


def _check(folder: Path, everything: bool) -> Path:
    """Return the absolute path of a run folder, or raise if its state (or the whole folder) may not be deleted.

    Args:
        folder: Run folder.
        everything: Whether the whole folder is to be deleted.

    Raises:
        StoreError: If the folder is a link, contains files that no run writes, or belongs to an unfinished run.
    """
    for path in (folder, folder / "state"):
        if path.is_symlink():
            raise StoreError(
                "linked_folder",
                f"'{path}' is a link. Give the folder that contains the run and its state; nothing was removed.",
                path=path,
            )
    folder = folder.resolve()
    run, summary = read_run_files(folder)
    if everything:
        _check_names(folder)
    else:
        _check_finished(folder, run, summary)
    return folder


def _check_names(folder: Path) -> None:
    """Raise if a folder contains files that no run writes."""
    foreign = sorted(path.name for path in folder.iterdir() if not _written_by_a_run(path))
    if foreign:
        raise StoreError(
            "foreign_file",
            f"'{folder}' contains files that no run writes: {', '.join(foreign)}. Move them first; "
            "nothing was removed.",
            path=folder,
            names=foreign,
        )


def _check_finished(folder: Path, run: RunFile, summary: Summary | None) -> None:
    """Raise if a run is not finished or has not yet written the bundles of all sites."""
    status = "stopped" if summary is None else summary.status
    if status != "finished":
        raise StoreError(
            "unfinished_run",
            f"The run in '{folder}' is {status}, not finished, and needs its state to continue. "
            "Finish it with the same command, or remove the whole run with --all. Nothing was removed.",
            path=folder,
            status=status,
        )
    missing = sites_without_bundle(folder, run)
    if missing:
        raise StoreError(
            "missing_bundles",
            f"The run in '{folder}' is finished, but the bundles of {len(missing)} sites are missing and are made from "
            "its state. Write them with the same command, or remove the whole run with --all. Nothing was removed.",
            path=folder,
            count=len(missing),
        )


def _written_by_a_run(path: Path) -> bool:
    """Return whether a run may have written an entry of its folder, by its name."""
    return any(fnmatchcase(path.name, pattern) for pattern in RUN_FOLDER_PATTERNS)


def _delete(folder: Path) -> int:
    """Delete a folder if it exists, and return its size in bytes."""
    freed = bytes_in(folder)
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise _unremovable(folder, error) from None
    return freed


def _unremovable(folder: Path, error: OSError) -> StoreError:
    """Return the error for a folder that can't be removed."""
    return StoreError(
        "unremovable_folder",
        f"'{folder}' can't be removed: {error.strerror}. Remove the rest of it by hand.",
        path=folder,
        reason=error.strerror,
    )
