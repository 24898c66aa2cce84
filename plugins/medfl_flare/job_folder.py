"""The folder of an NVFlare job: configuration only. It names one class at the server and one at the sites, and the run.

Nothing in it is code, and no participant builds anything from it but those two classes, which its own list allows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medfl.engine.runs.progress import PROGRESS
from medfl.errors import MedflError, SettingsError, StoreError
from medfl.records.summary import Summary
from medfl.types import SERVER
from medfl_flare.backend.remote_messages import TASK
from medfl_flare.describing.request import Request
from medfl_flare.observers import OBSERVED
from medfl_flare.provision import ALLOWED
from medfl_flare.records.offer import Offer

POLL_SECONDS = 0.2
"""How often a site asks the server for an order, in seconds; NVFlare's is 2."""

FETCHED = ("run.json", "metrics.csv", "summary.json", "findings*", "global", PROGRESS, OBSERVED)
"""What whoever submitted a run gets of its folder at the server, and takes of what the server sends."""


def write_job(offer: Offer | Request, folder: Path) -> Path:
    """Write the job of a run.

    Args:
        offer: The run, or the request for descriptions, with its sites.
        folder: Where the job's folder is made; it must exist.

    Returns:
        The job's folder, named like the run.

    Raises:
        SettingsError: If no site is named, or a text holds a curly bracket: NVFlare puts variables in their place.
    """
    if not offer.sites:
        raise SettingsError("no_sites", "a job needs the names of its sites; none is given")
    meta = offer.to_json()
    for text in _texts(meta):
        if "{" in text or "}" in text:
            raise SettingsError(
                "unsupported_character",
                f"expected settings without curly brackets in a run between machines, got '{text}'",
                value=text,
            )
    job = folder / offer.run
    workflow = {"id": TASK, "path": ALLOWED["server"], "args": {"offer": meta}}
    executor = {"tasks": [TASK], "executor": {"path": ALLOWED["client"], "args": {}}}
    _write(
        job / "meta.json",
        {
            "name": offer.run,
            "min_clients": 1,
            "resource_spec": {},
            "deploy_map": {"app_server": [SERVER], "app_site": offer.sites},
        },
    )
    polling = {"task_request_interval": POLL_SECONDS}
    _write(
        job / "app_server" / "config" / "config_fed_server.json",
        {"format_version": 2, "server": polling, "workflows": [workflow]},
    )
    _write(
        job / "app_site" / "config" / "config_fed_client.json",
        {"format_version": 2, "executors": [executor]},
    )
    return job


def copy_result(folder: Path, out: Path) -> None:
    """Copy what a run's result is (`FETCHED`), and nothing else: no other name, and no link.

    Args:
        folder: The run's folder at the server, or what came from there.
        out: Where to; files of the same names are replaced.
    """
    for path in sorted({path for pattern in FETCHED for path in folder.glob(pattern) if not path.is_symlink()}):
        if path.is_dir():
            shutil.copytree(path, out / path.name, dirs_exist_ok=True, ignore=_links)
        else:
            shutil.copy2(path, out / path.name)


def read_summary(out: Path) -> Summary | None:
    """Read the summary of a run that was copied from the server; None if there is none.

    Raises:
        MedflError: If the server sent something else in its place.
    """
    path = out / Summary.NAME
    if not path.is_file():
        return None
    try:
        return Summary.read(path)
    except StoreError as error:
        raise MedflError(
            "invalid_summary", f"expected the summary of a run from the server, got something else: {error}", path=path
        ) from None


def _links(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_symlink()]


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
