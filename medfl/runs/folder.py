"""Claim a run folder for a run: a folder of another run is refused; more rounds continue the run."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

import medfl
from medfl.errors import StoreError
from medfl.privacy.policy import policy_of
from medfl.records.run_file import RENAMED, RunFile, RunIdentity, TaskIdentity, Versions
from medfl.records.summary import BestRound
from medfl.settings import Settings
from medfl.task import Task
from medfl.types import SERVER, Meta
from medfl.utils import wire

logger = logging.getLogger(__name__)


def claim(folder: Path, run: RunFile) -> None:
    """Write ``run.json`` into a new folder, or check that the folder holds this run.

    A run that has done no step blocks no other one: its files are replaced.

    Args:
        folder: The run folder.
        run: The run. Its execution and versions may differ from those in the folder; this is logged as a warning.

    Raises:
        StoreError: If the folder holds another run or a cleaned one, or was started for more rounds, or under privacy
            for fewer.
    """
    path = folder / RunFile.NAME
    if path.exists() and _failed_at_start(folder, run.identity):
        shutil.rmtree(folder / "state" / SERVER, ignore_errors=True)
        for name in ("metrics.csv", "progress.jsonl"):
            (folder / name).unlink(missing_ok=True)
    elif path.exists():
        before = RunFile.read(path)
        _compare(before.identity.to_json(), run.identity.to_json(), folder)
        _check_rounds(folder, before.rounds, run)
        if before.cleaned:
            raise StoreError(
                "cleaned_run",
                f"The run in '{folder}' is finished and was cleaned: the state that would continue it is gone. Its "
                "scores and bundles are as they were. To compute it again, name another folder with --output_dir.",
                path=folder,
            )
        changes = {"execution": before.execution != run.execution, "versions": before.versions != run.versions}
        for part in (name for name, changed in changes.items() if changed):
            logger.warning("This run was started with other %s; its last bits may differ from an unbroken run.", part)
    run.write(path)


def _failed_at_start(folder: Path, identity: RunIdentity) -> bool:
    """Return whether a folder holds another run that has done no step: at most the server's initial state is saved."""
    before = RunFile.read(folder / RunFile.NAME)
    start = folder / "state" / SERVER / "step-00000000.safetensors"
    saved = {*folder.glob("state/*/step-*"), *folder.glob("state/*/inbox/*")}
    return before.identity != identity and not before.cleaned and saved <= {start}


def save_best_round(folder: Path, best_round: BestRound | None) -> None:
    """Write the best round into ``run.json``, if the run compares rounds.

    Args:
        folder: The run folder.
        best_round: From `medfl.runs.summary.best_round_of`.
    """
    path = folder / RunFile.NAME
    if best_round is not None:
        RunFile.read(path).model_copy(update={"best_round": best_round}).write(path)


def begun_run(folder: Path) -> RunFile | None:
    """Return the ``run.json`` of the run that a folder holds; None in a new folder.

    Raises:
        StoreError: If it is damaged.
    """
    path = folder / RunFile.NAME
    return RunFile.read(path) if path.exists() else None


def _check_rounds(folder: Path, before: int, run: RunFile) -> None:
    if run.rounds < before:
        raise StoreError(
            "fewer_rounds",
            f"The run folder '{folder}' was started for {before} rounds, got {run.rounds}: "
            "more are allowed and continue the run, fewer are not. Name another folder with --output_dir.",
            path=folder,
            expected=before,
            found=run.rounds,
        )
    if policy_of(run.settings).is_private and run.rounds != before:
        raise StoreError(
            "changed_privacy_rounds",
            f"The run folder '{folder}' spread its privacy budget over {before} rounds, got "
            f"{run.rounds}: more rounds would exceed the budget. Name another folder with --output_dir.",
            path=folder,
            expected=before,
            found=run.rounds,
        )


def identity(
    method: str, method_args: Meta, settings: Settings, task: Task, sites: Iterable[str], data_digest: str
) -> RunIdentity:
    """Return what makes two runs the same run.

    The number of rounds is not part of it, and neither are the rounds whose models are kept.

    Args:
        method: Name of the method.
        method_args: Settings of the method that were given.
        settings: Settings of the run.
        task: The learning problem.
        sites: Names of the sites.
        data_digest: Digest of the data.
    """
    networks = {name: _shape(task, name) for name in sorted({task.network, *settings.networks_by_site.values()})}
    optimizer = task.optimizer([nn.Parameter(torch.zeros(1))])
    values = settings.model_dump(mode="json", exclude={"rounds", "keep_rounds"})
    frozen = {name: digest for name in networks if (digest := task.frozen_digest(name)) is not None}
    return RunIdentity(
        method=method,
        method_args=json.loads(json.dumps(method_args)),
        settings={RENAMED.get(name, name): value for name, value in values.items()},
        sites=tuple(sorted(sites)),
        data=data_digest,
        task=TaskIdentity(
            networks=networks,
            loss=_loss(task.loss),
            optimizer=type(optimizer).__name__ + json.dumps(optimizer.defaults, default=str, sort_keys=True),
            metrics=tuple(task.metrics),
            **task.objective.identity,
            frozen=frozen or None,
            augmentation=None if task.augmentation is None else task.augmentation.facts,
            views=None if task.views is None else task.views.facts,
            weights=None if task.weights is None else task.weights.sha256,
            schedule=None if task.schedule is None else task.schedule.facts,
            regions=None if task.regions is None else wire.digest({"regions": task.regions})[:16],
        ),
    )


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


def versions() -> Versions:
    """Return the versions of the software that runs now."""
    return Versions(
        medfl=medfl.__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        machine=platform.machine(),
        cpu=torch.backends.cpu.get_cpu_capability(),
    )
