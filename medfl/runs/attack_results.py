"""What an attack found, in ``attacks/`` of the run folder: JSON for programs, beside a page for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from medfl.errors import StoreError
from medfl.types import Meta
from medfl.utils.files import write_json

FOLDER = "attacks"
"""In a run folder: all that attacks write."""

VERSION = 1
"""Of the JSON."""


def results_path(run: Path, attack: str, out: Path | None = None) -> Path:
    """The JSON of an attack; its page has the same name and ends with ``.html``.

    Args:
        run: The run folder.
        attack: ``membership``, ``inversion`` or ``poison``.
        out: The folder to write to; None means `FOLDER` in the run folder.
    """
    return (run / FOLDER if out is None else out) / f"{attack}.json"


def write_results(
    run: Path, attack: str, options: Meta, results: Sequence[Meta], out: Path | None = None, **facts: object
) -> Path:
    """Write the JSON of an attack, whole or not at all; what was there is replaced.

    Args:
        run: The run folder.
        attack: As in `results_path`.
        options: Those of the command, by name, as they were used.
        results: One object for each target and attack; numbers and texts.
        out: As in `results_path`.
        **facts: What else to write, for the page.

    Returns:
        The file.

    Raises:
        StoreError: If it can't be written.
    """
    path = results_path(run, attack, out)
    write_json(path, {"attack": attack, "version": VERSION, "options": options, "results": list(results)} | facts)
    return path


def read_results(run: Path, attack: str, out: Path | None = None) -> Meta | None:
    """What `write_results` wrote; None where the attack was not made.

    Raises:
        StoreError: If the file is damaged, or of another version.
    """
    path = results_path(run, attack, out)
    if not path.is_file():
        return None
    try:
        content: Meta = json.loads(path.read_text(encoding="utf-8"))
        known = content["attack"] == attack and content["version"] == VERSION
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            "damaged_file",
            f"'{path}' is damaged ({error}). Attack again: medfl attack {attack} '{run}'.",
            path=path,
            attack=attack,
        ) from None
    if not known:
        raise StoreError(
            "other_version",
            f"'{path}' was written by another version of medfl. Attack again: medfl attack {attack}.",
            path=path,
            attack=attack,
        )
    return content
