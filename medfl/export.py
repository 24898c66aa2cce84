"""What a site takes home: an ordinary MONAI bundle with its own model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from medfl.contract import Model
from medfl.errors import StoreError
from medfl.simulation import Result
from medfl.store import write_json

LEFT_OUT = {"federate.json"}
"""Configurations that make no sense for one site alone."""


def export(result: Result, bundle_root: Path, folder: Path) -> list[Path]:
    """Write a bundle for every site, and ``global/`` where the method has a global model.

    A site gets its personal model if it has one, otherwise the global one.

    Args:
        result: Of the run.
        bundle_root: The bundle that the run was made from; its configurations, docs and licence are copied.
        folder: The run folder; bundles go to ``sites/<name>`` and ``global``.

    Returns:
        The bundles' folders.

    Raises:
        StoreError: If one can't be written.
    """
    models = {
        folder / "sites" / site: found.get("personal") or found["global"]
        for site, found in sorted(result.models.items())
        if found
    }
    if "global" in result.outcome.models:
        models[folder / "global"] = result.outcome.models["global"]
    for target, model in models.items():
        _write(target, bundle_root, model)
    return list(models)


def _write(target: Path, bundle_root: Path, model: Model) -> None:
    try:
        (target / "models").mkdir(parents=True, exist_ok=True)
        for part in ("configs", "docs"):
            if (bundle_root / part).is_dir():
                shutil.copytree(
                    bundle_root / part, target / part, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT)
                )
        if (bundle_root / "LICENSE").exists():
            shutil.copy(bundle_root / "LICENSE", target / "LICENSE")
        _name_network(target / "configs" / "train.json", model.network)
        torch.save(model.tensors, target / "models" / "model.pt")
    except OSError as error:
        raise StoreError(
            f"Could not write the bundle '{target}': {error.strerror}. The run itself is saved: mend that and give the "
            "same command again."
        ) from error


def _name_network(config: Path, network: str) -> None:
    if config.exists():
        content = json.loads(config.read_text())
        if content.get("network_name") not in (None, network):
            content["network_name"] = network
            write_json(config, content)
