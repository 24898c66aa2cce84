"""The folder of an NVFlare job, which contains only configuration: two class names and the offer of the run.

The job of an evaluation also contains the weights of the model as safetensors, for the server.

Nothing in the folder is code. A participant builds nothing from it except the two classes, which its own allow-list
(the list of classes that a job may name) contains. An offer is the proposal of a run, with bundle, method, settings and
sites.
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
from medfl_flare.backend.protocol_messages import TASK_NAME
from medfl_flare.federated_evaluation.evaluation_request import EvaluationRequest
from medfl_flare.federated_statistics.statistics_request import StatisticsRequest
from medfl_flare.observers import OBSERVED_FILE_NAME
from medfl_flare.provision import ALLOWED_CLASSES
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.records.offer import Offer

POLL_SECONDS = 0.2
"""Seconds between two requests of a site for a task; NVFlare's default is 2."""

RESULT_PATTERNS = ("run.json", "metrics.csv", "summary.json", "findings*", "global", PROGRESS, OBSERVED_FILE_NAME)
"""Patterns of the files in a run folder that the server sends to the researcher, and that the researcher accepts."""


WEIGHTS_FILE_NAME = "model.safetensors"
"""Name of the file of weights in the job of an evaluation, beside the server's configuration."""


def write_job(
    offer: Offer | StatisticsRequest | EvaluationRequest,
    folder: Path,
    weights: bytes | None = None,
    gpus: GpuRequest | None = None,
) -> Path:
    """Write the folder of a job.

    Args:
        offer: Offer of a run, or request for federated statistics or for an evaluation; it must name its sites.
        folder: Parent of the job's folder; it must exist.
        weights: Content of the file of weights of an evaluation, in the format of safetensors; None for other jobs.
        gpus: GPUs that each site must grant before the job starts. Without the setting ``min_replies`` all sites must
            grant them, and with it as many as it says.

    Returns:
        The job's folder, named like the run.

    Raises:
        SettingsError: If no site is named, or if a text contains a curly bracket, which NVFlare replaces by variables.
    """
    if not offer.sites:
        raise SettingsError("no_sites", "expected the names of the job's sites, got none")
    content = offer.to_json()
    for text in _strings_in(content):
        if "{" in text or "}" in text:
            raise SettingsError(
                "unsupported_character",
                f"expected settings without curly brackets in a distributed run, got '{text}'",
                value=text,
            )
    job = folder / offer.run
    workflow = {"id": TASK_NAME, "path": ALLOWED_CLASSES["server"], "args": {"offer": content}}
    executor = {"tasks": [TASK_NAME], "executor": {"path": ALLOWED_CLASSES["client"], "args": {}}}
    meta = {
        "name": offer.run,
        "min_clients": 1,
        "resource_spec": {},
        "deploy_map": {"app_server": [SERVER], "app_site": offer.sites},
    }
    if gpus is not None:
        least = offer.overrides.get("min_replies") if isinstance(offer, Offer) else None
        meta |= {"min_clients": least} if isinstance(least, int) else {"mandatory_clients": offer.sites}
        meta["resource_spec"] = gpus.resource_spec(offer.sites)
    _write(job / "meta.json", meta)
    polling = {"task_request_interval": POLL_SECONDS}
    _write(
        job / "app_server" / "config" / "config_fed_server.json",
        {"format_version": 2, "server": polling, "workflows": [workflow]},
    )
    _write(
        job / "app_site" / "config" / "config_fed_client.json",
        {"format_version": 2, "executors": [executor]},
    )
    if weights is not None:
        (job / "app_server" / "config" / WEIGHTS_FILE_NAME).write_bytes(weights)
    return job


def copy_result(folder: Path, out: Path) -> None:
    """Copy the files of a run's result (`RESULT_PATTERNS`), and nothing else: no other name, and no link.

    Args:
        folder: The run's folder at the server, or the downloaded copy.
        out: Destination; files of the same names are replaced.
    """
    for path in sorted({path for pattern in RESULT_PATTERNS for path in folder.glob(pattern) if not path.is_symlink()}):
        if path.is_dir():
            shutil.copytree(path, out / path.name, dirs_exist_ok=True, ignore=_links)
        else:
            shutil.copy2(path, out / path.name)


def read_summary(out: Path) -> Summary | None:
    """Read the summary of a run that was copied from the server; None if there is none.

    Raises:
        MedflError: If the file is not a valid summary.
    """
    path = out / Summary.NAME
    if not path.is_file():
        return None
    try:
        return Summary.read(path)
    except StoreError as error:
        raise MedflError(
            "invalid_summary", f"expected a valid summary of a run from the server: {error}", path=path
        ) from None


def _links(folder: str, names: list[str]) -> list[str]:
    """Return the names of the links among the entries of a folder."""
    return [name for name in names if (Path(folder) / name).is_symlink()]


def _strings_in(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _strings_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings_in(inner)


def _write(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
