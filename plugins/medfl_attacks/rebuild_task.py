"""Rebuild the task of a finished run from an exported bundle and the metadata in ``run.json``.

The task is the learning problem: network, loss, optimizer, metrics. An exported bundle is a MONAI bundle with a final
model that the run wrote. An adopted bundle is a stock MONAI bundle for which ``medfl adopt`` wrote a federation file;
its task can't be rebuilt here.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from torch import nn

from medfl.bundle.exported import CONFIG, WEIGHTS
from medfl.engine.plan import identify_task
from medfl.engine.runs.records import RunRecord
from medfl.engine.runs.weights_file import read_bytes, tensors_of
from medfl.errors import StoreError
from medfl.networks.transfer.frozen import set_tensors
from medfl.records.run_file import SettingOrigin, TaskIdentity
from medfl.settings import Settings
from medfl.task import OptimizerFactory, Task, optimizer_factory
from medfl.types import Tensors

logger = logging.getLogger(__name__)


def exported_bundles(record: RunRecord) -> list[Path]:
    """Return the folders of a run's exported bundles, the global model's first.

    Bundles without a model or a configuration are left out.
    """
    folders = [record.folder / "global"]
    folders += [record.folder / "sites" / site for site in record.sites]
    return [folder for folder in folders if (folder / WEIGHTS).is_file() and (folder / CONFIG).is_file()]


def read_bundle(record: RunRecord, data_folder: Path) -> tuple[ConfigParser, Path]:
    """Read the configuration of a run's first exported bundle and point it to the run's data.

    Args:
        record: The run.
        data_folder: Current folder of the run's data.

    Returns:
        The configuration, and the bundle's folder.

    Raises:
        StoreError: If the run has no exported bundle, if it trained an adopted stock bundle, or if the configuration is
            damaged.
    """
    bundles = exported_bundles(record)
    if not bundles:
        raise StoreError(
            "missing_bundles",
            f"The run in '{record.folder}' is {record.status} and has no model to attack: expected exported bundles "
            "in its folders 'global' or 'sites'. Run its command again to finish it.",
            path=record.folder,
            status=record.status,
        )
    parser = ConfigParser()
    try:
        parser.read_config(str(bundles[0] / CONFIG))
    except (ValueError, OSError) as error:
        raise StoreError(
            "unreadable_file",
            f"expected a bundle configuration in '{bundles[0] / CONFIG}': {error}. Restore the file.",
            path=bundles[0] / CONFIG,
        ) from None
    if "task" not in parser:
        raise StoreError(
            "bundle_not_supported",
            f"The run in '{record.folder}' trained an adopted stock bundle, whose image scale the attacks don't know: "
            "expected a run of one of medfl's own bundles. Attack such a run.",
            path=record.folder,
        )
    own = {"bundle_root": str(bundles[0]), "dataset_dir": str(data_folder), "device": "cpu"}
    parser.update(pairs=own | {"class_weights": None, "network": "@network_def"})
    return parser, bundles[0]


def rebuild_task(parser: ConfigParser, record: RunRecord, settings: Settings, data_folder: Path) -> Task:
    """Rebuild the task of a run.

    Args:
        parser: Configuration from `read_bundle`.
        record: The run.
        settings: Settings of the run.
        data_folder: Folder of the run's data.

    Returns:
        The task on the CPU. Frozen tensors have the values of the run; all others are not those that the run may have
        started from.

    Raises:
        StoreError: If the bundle defines other networks, another loss or another optimizer than the run used, or if the
            frozen tensors of the run's networks are not in its exported bundles.
    """
    task = parser.get_parsed_content("task")
    before = record.run.identity.task
    if before.start is not None:
        logger.warning(
            "The run's networks started from given weights; what learns in the attacker's networks starts untrained."
        )
    optimizer = _build_optimizer(task, record.run.provenance.settings)
    task = dataclasses.replace(task, optimizer=optimizer)
    if before.augmentation is None:
        task = dataclasses.replace(task, augmentation=None)
    elif task.augmentation is None or _to_json_types(task.augmentation.facts) != before.augmentation:
        logger.warning(
            "The run's augmentation differs from the exported bundle's; the attacker uses the bundle's augmentation."
        )
    task = task.with_training_of(settings.train_part, settings.lora)
    _check_same_task(task, settings, before, record.folder)
    for network, digest in (before.frozen or {}).items():
        task = _with_frozen_tensors_of(task, network, digest, record)
    return task


def _with_frozen_tensors_of(task: Task, network: str, digest: str, record: RunRecord) -> Task:
    """Return the task whose network has the frozen tensors of the run, read from its exported bundles.

    Args:
        task: The rebuilt task. Its frozen tensors come from the constructor.
        network: Name of the network.
        digest: SHA-256 of the network's frozen tensors in the run.
        record: The run.

    Raises:
        StoreError: If no exported bundle has these tensors.
    """
    if task.frozen_digest(network) == digest:
        return task
    names = task.frozen(network).keys()
    for bundle in exported_bundles(record):
        tensors = tensors_of(read_bytes(bundle / WEIGHTS), bundle / WEIGHTS)
        if names <= tensors.keys():
            frozen = {name: tensors[name] for name in names}
            filled = task.with_network(network, partial(_build_with_tensors, task.networks[network], frozen))
            if filled.frozen_digest(network) == digest:
                return filled
    raise StoreError(
        "missing_frozen_tensors",
        f"The frozen tensors of network '{network}' of the run in '{record.folder}' are not in its exported bundles (a "
        "merged adapter changes them): an attack on other tensors would say nothing about this run. Attack a run "
        "without adapters, or whose exported bundles are complete.",
        path=record.folder,
        network=network,
    )


def _build_with_tensors(build: Callable[[], nn.Module], tensors: Tensors) -> nn.Module:
    """Build a network and set some of its tensors."""
    model = build()
    set_tensors(model, tensors)
    return model


def _build_optimizer(task: Task, origins: Mapping[str, SettingOrigin]) -> OptimizerFactory:
    """Build the optimizer factory of the run, with the options that the run's command may have changed."""
    options = {name[10:]: origin.value for name, origin in origins.items() if name.startswith("optimizer.")}
    kind: Any = type(task.optimizer([nn.Parameter(torch.zeros(1))]))
    name = options.pop("name", kind.__name__)
    kind = kind if name == kind.__name__ else getattr(torch.optim, name, kind)
    accepted = inspect.signature(kind.__init__).parameters
    used = {name: value for name, value in options.items() if name in accepted}
    return optimizer_factory(kind([nn.Parameter(torch.zeros(1))], **used))


def _check_same_task(task: Task, settings: Settings, before: TaskIdentity, folder: Path) -> None:
    """Raise StoreError if the rebuilt task differs from the task of the run."""
    missing = sorted(set(before.networks) - set(task.networks))
    had, now = before.to_json(), {} if missing else identify_task(task, settings.networks_by_site).to_json()
    parts = ("networks", "loss", "optimizer", *task.objective.identity)
    changed = ["networks"] if missing else [part for part in parts if had.get(part) != now[part]]
    if changed:
        raise StoreError(
            "changed_task",
            f"The {' and the '.join(changed)} of the run in '{folder}' can't be rebuilt from its exported bundles: an "
            "option of its command changed them, and exported bundles don't contain such options. Write them into the "
            "bundle's configuration and run it again.",
            path=folder,
            parts=changed,
        )


def _to_json_types(value: Any) -> Any:
    """Convert a value to plain JSON types."""
    return json.loads(json.dumps(value))
