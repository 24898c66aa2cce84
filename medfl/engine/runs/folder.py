"""Claim a run folder for a run, by its ``run.json``.

A folder of another run raises an error. The same run with more rounds continues the run in the folder.
"""

from __future__ import annotations

import logging
import platform
import shutil
from pathlib import Path

import torch

from medfl.errors import StoreError
from medfl.privacy.policy import policy_of
from medfl.records.run_file import RunFile, RunIdentity, Versions
from medfl.records.summary import BestRound
from medfl.types import SERVER, Meta
from medfl.version import __version__

logger = logging.getLogger(__name__)


def claim(folder: Path, run: RunFile) -> None:
    """Write ``run.json`` into a new folder, or check that the folder holds this run.

    If the folder holds another run that has completed no step, its files are deleted and replaced.

    Args:
        folder: Path of the run folder.
        run: The run. If its execution or versions differ from those in the folder, a warning is logged.

    Raises:
        StoreError: If the folder holds another run or a run whose state was deleted (``medfl clean``), if its run was
            started for more rounds, or, with a privacy setting or a cosine schedule, for fewer rounds.
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
                f"The run in '{folder}' is finished and was cleaned: the state that would continue it was deleted. Its "
                "scores and bundles are unchanged. To compute it again, name another folder with --output_dir.",
                path=folder,
            )
        changes = {"execution": before.execution != run.execution, "versions": before.versions != run.versions}
        for part in (name for name, changed in changes.items() if changed):
            logger.warning(
                "This run was started with other %s; its last bits may differ from an uninterrupted run.", part
            )
    run.write(path)


def _failed_at_start(folder: Path, identity: RunIdentity) -> bool:
    """Return whether a folder holds another run that has saved at most the server's initial state."""
    before = RunFile.read(folder / RunFile.NAME)
    start = folder / "state" / SERVER / "step-00000000.safetensors"
    saved = {*folder.glob("state/*/step-*"), *folder.glob("state/*/inbox/*")}
    return before.identity != identity and not before.cleaned and saved <= {start}


def save_best_round(folder: Path, best_round: BestRound | None) -> None:
    """Write the best round into the folder's ``run.json``, if the run compares rounds.

    Args:
        folder: The run folder.
        best_round: Best round of the run, or None if the run does not compare rounds.
    """
    path = folder / RunFile.NAME
    if best_round is not None:
        RunFile.read(path).model_copy(update={"best_round": best_round}).write(path)


def begun_run(folder: Path) -> RunFile | None:
    """Read the ``run.json`` of the run that a folder holds; return None for a new folder.

    Raises:
        StoreError: If the file is damaged.
    """
    path = folder / RunFile.NAME
    return RunFile.read(path) if path.exists() else None


def _check_rounds(folder: Path, before: int, run: RunFile) -> None:
    if run.rounds < before:
        raise StoreError(
            "fewer_rounds",
            f"The run folder '{folder}' was started for {before} rounds, got {run.rounds}. More rounds continue the "
            "run, but fewer are not possible. Name another folder with --output_dir.",
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
    recipe = run.settings.optimization
    if recipe is not None and recipe.schedule == "cosine" and run.rounds != before:
        raise StoreError(
            "changed_schedule_rounds",
            f"The learning rates of the run in '{folder}' follow a cosine over {before} rounds, got {run.rounds}: more "
            f"rounds would change the learning rates of completed rounds. Set --rounds {before}, or name another "
            "folder with --output_dir.",
            path=folder,
            expected=before,
            found=run.rounds,
        )


def _compare(before: Meta, now: Meta, folder: Path, path: str = "") -> None:
    """Raise an error at the first setting that differs from the run in the folder."""
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
    """Return the versions of the installed software, and the kind of processor."""
    return Versions(
        medfl=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        machine=platform.machine(),
        cpu=torch.backends.cpu.get_cpu_capability(),
    )
