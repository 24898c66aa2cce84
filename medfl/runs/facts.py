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
    summary = folder / "summary.json"
    return _json(folder / "run.json"), _json(summary) if summary.is_file() else {}


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
        content: Meta = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise StoreError(f"'{path}' is damaged ({error}). Run the same command again, or put it back.") from None
    return content
