"""``run.json``: which run a folder holds. A folder of another run is refused; more rounds continue it."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import nn

import medfl
from medfl.errors import DamagedError, StoreError
from medfl.settings import Settings
from medfl.task import Task
from medfl.types import SERVER, Meta
from medfl.utils import wire
from medfl.utils.files import write_json

logger = logging.getLogger(__name__)

NAMES = {"networks_by_site": "networks"}
"""Setting to its name in an `identity`, where that is another one: streams of noise hang on the names there."""


def claim(folder: Path, run: Meta, settings: Settings, execution: Meta, record: Meta) -> None:
    """Write run.json into a new folder, or check that the folder holds this run.

    A run that has done no step blocks no other one: its files are replaced.

    Args:
        folder: The run folder.
        run: Its `identity`.
        settings: The run's settings.
        execution: Workers, threads and device; other ones are allowed, with a warning.
        record: What else the file holds, for people: origins of the settings, hashes of the data, plugins.

    Raises:
        StoreError: If it holds another run or one that was cleaned, or fewer rounds are asked for than before, or more
            under privacy.
    """
    path = folder / "run.json"
    content = {
        "identity": run,
        "rounds": settings.rounds,
        "execution": execution,
        "versions": _versions(),
        **record,
    }
    if path.exists() and _failed_at_start(folder, run):
        shutil.rmtree(folder / "state" / SERVER, ignore_errors=True)
        for name in ("metrics.csv", "progress.jsonl"):
            (folder / name).unlink(missing_ok=True)
    elif path.exists():
        before = _read(path)
        _compare(before["identity"], run, folder)
        _check_rounds(folder, before["rounds"], settings)
        if before.get("cleaned"):
            raise StoreError(
                "cleaned_run",
                f"The run in '{folder}' is finished and was cleaned: the state that would continue it is gone. Its "
                "scores and bundles are as they were. To compute it again, name another folder with --output_dir.",
                path=folder,
            )
        for part in ("execution", "versions"):
            if before[part] != content[part]:
                logger.warning(
                    "This run was started with other %s; its last bits may differ from an unbroken run.", part
                )
    write_json(path, wire.sealed(content))


def _failed_at_start(folder: Path, run: Meta) -> bool:
    """Whether a folder holds another run that has done no step: at most the server's initial state is saved."""
    before = _read(folder / "run.json")
    start = folder / "state" / SERVER / "step-00000000.safetensors"
    saved = {*folder.glob("state/*/step-*"), *folder.glob("state/*/inbox/*")}
    return before["identity"] != run and not before.get("cleaned") and saved <= {start}


def note_best_round(folder: Path, chosen: Meta | None) -> None:
    """Say in ``run.json`` which round was chosen, where the run chooses one.

    Args:
        folder: The run folder.
        chosen: From `medfl.runs.summary.chosen_round`.
    """
    path = folder / "run.json"
    if chosen is not None:
        write_json(path, wire.sealed(_read(path) | {"best_round": chosen}))


def begun_record(folder: Path) -> Meta | None:
    """The ``run.json`` of the run that a folder holds; None in a new folder.

    Raises:
        StoreError: If it is damaged.
    """
    path = folder / "run.json"
    return _read(path) if path.exists() else None


def late_networks(run: Meta) -> dict[str, str]:
    """Site to the network that it brought, of the sites that came when the run had begun between machines.

    Args:
        run: What ``run.json`` holds.
    """
    joined: Mapping[str, Meta] = run.get("joined") or {}
    return {site: str(entry["network"]) for site, entry in joined.items() if entry["network"] is not None}


def _read(path: Path) -> Meta:
    try:
        return wire.unsealed(path.read_bytes())
    except DamagedError as error:
        raise StoreError(
            "damaged_file", f"'{path}' is damaged: {error}. Put it back, or start the run in a new folder.", path=path
        ) from error


def _check_rounds(folder: Path, before: int, settings: Settings) -> None:
    if settings.rounds < before:
        raise StoreError(
            "fewer_rounds",
            f"The run folder '{folder}' was started for {before} rounds, got {settings.rounds}: "
            "more are allowed and continue the run, fewer are not. Name another folder with --output_dir.",
            path=folder,
            expected=before,
            found=settings.rounds,
        )
    if settings.privacy is not None and settings.rounds != before:
        raise StoreError(
            "changed_privacy_rounds",
            f"The run folder '{folder}' spread its privacy budget over {before} rounds, got "
            f"{settings.rounds}: more rounds would exceed the budget. Name another folder with --output_dir.",
            path=folder,
            expected=before,
            found=settings.rounds,
        )


def identity(
    method: str, method_args: Meta, settings: Settings, task: Task, sites: Iterable[str], data_digest: str
) -> Meta:
    """What makes two runs the same run; the number of rounds is no part of it, nor which models are kept."""
    networks = {name: _shape(task, name) for name in sorted({task.network, *settings.networks_by_site.values()})}
    optimizer = task.optimizer([nn.Parameter(torch.zeros(1))])
    values = settings.model_dump(mode="json", exclude={"rounds", "keep_rounds"})
    frozen = {name: digest for name in networks if (digest := task.frozen_digest(name)) is not None}
    return {
        "method": method,
        "method_args": json.loads(json.dumps(method_args)),
        "settings": {NAMES.get(name, name): value for name, value in values.items()},
        "sites": sorted(sites),
        "data": data_digest,
        "task": {
            "networks": networks,
            "loss": _loss(task.loss),
            "optimizer": type(optimizer).__name__ + json.dumps(optimizer.defaults, default=str, sort_keys=True),
            "metrics": list(task.metrics),
            **task.objective.identity,
            **({"frozen": frozen} if frozen else {}),
            **_inputs(task),
        },
    }


def settings_in(named: Meta, rounds: int) -> Meta:
    """The settings of a run by their own names, from its `identity`.

    Args:
        named: The identity.
        rounds: Of the run.
    """
    names = {name: field for field, name in NAMES.items()}
    return {names.get(name, name): value for name, value in named["settings"].items()} | {"rounds": rounds}


def run_id_of(named: Meta) -> str:
    """A run's name for streams of noise, from its `identity`: two runs never share one.

    Which data the sites have is left out, as no party knows all of them when they are apart; noise is keyed by what is
    noised as well, so other data have other noise.
    """
    known = {key: value for key, value in named.items() if key != "data"}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _inputs(task: Task) -> Meta:
    """What a task does with its images before a network sees them, what the network starts from, the schedule."""
    changes = {"augmentation": task.augmentation, "views": task.views}
    inputs: Meta = {name: change.facts for name, change in changes.items() if change is not None}
    inputs |= {} if task.weights is None else {"weights": task.weights.sha256}
    inputs |= {} if task.schedule is None else {"schedule": task.schedule.facts}
    return inputs | ({} if task.regions is None else {"regions": wire.digest({"regions": task.regions})[:16]})


def _loss(loss: nn.Module) -> Meta:
    """What a loss is: its classes and plain attributes, which its repr often leaves out, and its tensors."""
    parts = [(path + "." if path else "", part) for path, part in loss.named_modules()]
    facts = {p + k: v for p, part in parts for k, v in vars(part).items() if isinstance(v, bool | int | float | str)}
    return facts | {"is": repr(loss), "tensors": wire.digest(dict(loss.state_dict()))[:16]}


def _shape(task: Task, network: str) -> str:
    """A hash of a network's tensor names and shapes."""
    with torch.random.fork_rng(devices=[]):
        shapes = {name: list(tensor.shape) for name, tensor in task.build(network).state_dict().items()}
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]


def _compare(before: Meta, now: Meta, folder: Path, path: str = "") -> None:
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            _compare(old, new, folder, f"{path}{key}.")
        elif old != new:
            raise StoreError(
                "other_run",
                f"The run folder '{folder}' holds a run with other settings: {path}{key} was {old!r}, now {new!r}. "
                "Name another folder with --output_dir, or give the settings of that run.",
                path=folder,
                setting=f"{path}{key}",
                expected=old,
                found=new,
            )


def _versions() -> Meta:
    return {
        "medfl": medfl.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
