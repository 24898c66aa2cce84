"""The facts of a run: ``run.json`` and ``summary.json``, read without the tables and tensors beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from medfl.errors import StoreError
from medfl.types import Meta, PathLike
from medfl.utils.text import MAX_NAMES, names_and_more


def without_logs(paths: Sequence[Path]) -> list[Path]:
    """Leave out the log files that a study writes beside its run folders, so that ``runs/*/seed-*`` names runs only.

    A log is called as a folder beside it, with more at its end: ``seed-0.log`` or ``seed-0-membership.log``.
    """
    folders = [path for path in paths if path.is_dir()]

    def is_log(path: Path) -> bool:
        beside = [folder.name for folder in folders if folder.parent == path.parent]
        return path.suffix == ".log" and path.is_file() and path.name.startswith(tuple(beside))

    return [path for path in paths if not is_log(path)]


def read_facts(folder: PathLike) -> tuple[Meta, Meta]:
    """What ``run.json`` and ``summary.json`` hold; the second is empty while the run is not over.

    Raises:
        StoreError: If the folder holds no run, or one of the files can't be read.
    """
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        runs = sorted(path.parent.name for path in folder.glob("*/run.json"))
        mend = (
            f"Its runs are {names_and_more(runs, MAX_NAMES)}: give one of these."
            if runs
            else "Give the --output_dir of a run."
        )
        why = "there is no run.json in it" if folder.is_dir() else "there is no such folder"
        raise StoreError("missing_run", f"expected a run folder at '{folder}', {why}. {mend}", path=folder)
    summary, run = folder / "summary.json", _json(folder / "run.json")
    _check_sites(folder, run)
    return run, _json(summary) if summary.is_file() else {}


def _check_sites(folder: Path, run: Meta) -> None:
    """Refuse names of sites that are no names of folders: they stand in paths that are read, and written by a card.

    Raises:
        StoreError: If one is not.
    """
    identity = run.get("identity")
    sites = identity.get("sites") if isinstance(identity, dict) else None
    if not isinstance(sites, list) or not all(isinstance(site, str) and _is_folder_name(site) for site in sites):
        raise StoreError(
            "invalid_site_name",
            f"expected in '{folder / 'run.json'}' the sites of a run, each by a name that is one of a folder; got "
            "something else. The file was damaged, or no run of medfl wrote it.",
            path=folder / "run.json",
        )


def _is_folder_name(name: str) -> bool:
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & {*name}


def sites_without_bundle(folder: Path, run: Meta) -> list[str]:
    """Sites of a run that have no bundle to take home.

    Args:
        folder: The run folder.
        run: Its ``run.json``.
    """
    return [
        site for site in run["identity"]["sites"] if not (folder / "sites" / site / "models" / "model.pt").is_file()
    ]


def _json(path: Path) -> Meta:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise StoreError(
            "damaged_file", f"'{path}' is damaged ({error}). Run the same command again, or put it back.", path=path
        ) from None
    if not isinstance(content, dict):
        raise StoreError(
            "damaged_file",
            f"'{path}' is damaged: expected an object, got a {type(content).__name__}. Put it back.",
            path=path,
            expected="object",
            found=type(content).__name__,
        )
    return content
