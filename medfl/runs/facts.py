"""The facts of a run: ``run.json`` and ``summary.json``, read without the tables and tensors beside them."""

from __future__ import annotations

import json
from pathlib import Path

from medfl.errors import StoreError
from medfl.types import Meta
from medfl.utils.text import MAX_NAMES, names_and_more


def read_facts(folder: Path) -> tuple[Meta, Meta]:
    """What ``run.json`` and ``summary.json`` hold; the second is empty while the run is not over.

    Raises:
        StoreError: If the folder holds no run, or one of the files can't be read.
    """
    if not (folder / "run.json").is_file():
        runs = sorted(path.parent.name for path in folder.glob("*/run.json"))
        mend = (
            f"Its runs are {names_and_more(runs, MAX_NAMES)}: give one of these."
            if runs
            else "Give the --output_dir of a run."
        )
        why = "there is no run.json in it" if folder.is_dir() else "there is no such folder"
        raise StoreError(f"expected a run folder at '{folder}', {why}. {mend}")
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
            f"expected in '{folder / 'run.json'}' the sites of a run, each by a name that is one of a folder; got "
            "something else. The file was damaged, or no run of medfl wrote it."
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
        raise StoreError(f"'{path}' is damaged ({error}). Run the same command again, or put it back.") from None
    if not isinstance(content, dict):
        raise StoreError(f"'{path}' is damaged: expected an object, got a {type(content).__name__}. Put it back.")
    return content
