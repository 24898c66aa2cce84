"""Read ``run.json`` and ``summary.json`` of a run folder, without reading the tables and tensors in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medfl.errors import StoreError
from medfl.records.run_file import RunFile
from medfl.records.summary import Summary
from medfl.types import PathLike
from medfl.utils.text import MAX_NAMES, names_and_more


def exclude_logs(paths: Sequence[Path]) -> list[Path]:
    """Return paths without log files, so that ``runs/*/seed-*`` yields run folders only.

    A study (a comparison of several methods and seeds) writes a log file next to each of its run folders. The name of a
    log file begins with the name of a folder next to it: ``seed-0.log`` or ``seed-0-membership.log``.
    """
    folders = [path for path in paths if path.is_dir()]

    def is_log(path: Path) -> bool:
        beside = [folder.name for folder in folders if folder.parent == path.parent]
        return path.suffix == ".log" and path.is_file() and path.name.startswith(tuple(beside))

    return [path for path in paths if not is_log(path)]


def read_run_files(folder: PathLike) -> tuple[RunFile, Summary | None]:
    """Read ``run.json`` and ``summary.json`` of a run folder.

    Args:
        folder: The run folder.

    Returns:
        The run, and its summary; None while the run is not over.

    Raises:
        StoreError: If the folder holds no run, or one of the files can't be read.
    """
    folder = Path(folder)
    if not (folder / RunFile.NAME).is_file():
        runs = sorted(path.parent.name for path in folder.glob(f"*/{RunFile.NAME}"))
        hint = (
            f"Its runs are {names_and_more(runs, MAX_NAMES)}: give one of these."
            if runs
            else "Give the --output_dir of a run."
        )
        cause = "there is no run.json in it" if folder.is_dir() else "there is no such folder"
        raise StoreError("missing_run", f"expected a run folder at '{folder}', {cause}. {hint}", path=folder)
    summary, run = folder / Summary.NAME, RunFile.read(folder / RunFile.NAME)
    return run, Summary.read(summary) if summary.is_file() else None


def sites_without_bundle(folder: Path, run: RunFile) -> list[str]:
    """Return the sites of a run that have no exported bundle.

    Args:
        folder: The run folder.
        run: Content of the folder's ``run.json``.
    """
    return [site for site in run.identity.sites if not (folder / "sites" / site / "models" / "model.pt").is_file()]
