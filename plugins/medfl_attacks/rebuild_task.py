"""The task of a finished run, from the bundle that a participant took home and what ``run.json`` says of the run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from torch import nn

from medfl.bundle.exported import CONFIG, WEIGHTS
from medfl.engine.plan import identify_task
from medfl.engine.runs.records import RunRecord
from medfl.errors import StoreError
from medfl.records.run_file import SettingOrigin, TaskIdentity
from medfl.settings import Settings
from medfl.task import OptimizerFactory, Task, optimizer_factory

logger = logging.getLogger(__name__)


def homes(record: RunRecord) -> list[Path]:
    """The bundles of a run, that of the global model first; each has a model and `CONFIG`."""
    folders = [record.folder / "global"]
    folders += [record.folder / "sites" / site for site in record.sites]
    return [home for home in folders if (home / WEIGHTS).is_file() and (home / CONFIG).is_file()]


def read_bundle(record: RunRecord, data_folder: Path) -> tuple[ConfigParser, Path]:
    """The configuration of a bundle of the run, with the run's data in it; and the bundle's folder.

    Args:
        record: The run.
        data_folder: Where its data are now.

    Raises:
        StoreError: If the run has no bundle or an adopted one, or its configuration is damaged.
    """
    bundles = homes(record)
    if not bundles:
        raise StoreError(
            "missing_bundles",
            f"The run in '{record.folder}' is {record.status} and has no model that can be attacked: expected bundles "
            "in its folders 'global' or 'sites'. Give its command again to finish it.",
            path=record.folder,
            status=record.status,
        )
    parser = ConfigParser()
    try:
        parser.read_config(str(bundles[0] / CONFIG))
    except (ValueError, OSError) as error:
        raise StoreError(
            "unreadable_file",
            f"expected a configuration in '{bundles[0] / CONFIG}': {error}. Put the file back.",
            path=bundles[0] / CONFIG,
        ) from None
    if "task" not in parser:
        raise StoreError(
            "bundle_not_supported",
            f"The run in '{record.folder}' trained a stock bundle that was adopted, and no attack knows the scale of "
            "its images: expected a run of one of medfl's own bundles. Attack such a run.",
            path=record.folder,
        )
    own = {"bundle_root": str(bundles[0]), "dataset_dir": str(data_folder), "device": "cpu"}
    parser.update(pairs=own | {"class_weights": None, "network": "@network_def"})
    return parser, bundles[0]


def rebuild_task(parser: ConfigParser, record: RunRecord, settings: Settings, data_folder: Path) -> Task:
    """The task of a run.

    Args:
        parser: From `read_bundle`.
        record: The run.
        settings: The run's settings.
        data_folder: Where its data are.

    Returns:
        On the CPU, without the file of weights that its networks may have started from.

    Raises:
        StoreError: If the bundle gives other networks, another loss or another optimiser than the run had.
    """
    task = parser.get_parsed_content("task")
    before = record.run.identity.task
    if before.weights is not None:
        logger.warning("The run's networks began with weights from a file; those that an attacker trains don't.")
    optimizer = _optimizer(task, record.run.provenance.settings)
    task = dataclasses.replace(task, optimizer=optimizer, weights=None)
    if before.augmentation is None:
        task = dataclasses.replace(task, augmentation=None)
    elif task.augmentation is None or _plain(task.augmentation.facts) != before.augmentation:
        logger.warning("The run changed its training images in another way than its bundle; attackers use the latter.")
    _check(task, settings, before, record.folder)
    return task


def _optimizer(task: Task, origins: Mapping[str, SettingOrigin]) -> OptimizerFactory:
    """The run's optimiser, which may have had other options than its bundle says."""
    options = {name[10:]: origin.value for name, origin in origins.items() if name.startswith("optimizer.")}
    kind: Any = type(task.optimizer([nn.Parameter(torch.zeros(1))]))
    name = options.pop("name", kind.__name__)
    kind = kind if name == kind.__name__ else getattr(torch.optim, name, kind)
    accepted = inspect.signature(kind.__init__).parameters
    used = {name: value for name, value in options.items() if name in accepted}
    return optimizer_factory(kind([nn.Parameter(torch.zeros(1))], **used))


def _check(task: Task, settings: Settings, before: TaskIdentity, folder: Path) -> None:
    missing = sorted(set(before.networks) - set(task.networks))
    had, now = before.to_json(), {} if missing else identify_task(task, settings.networks_by_site).to_json()
    parts = ("networks", "loss", "optimizer", *task.objective.identity)
    unlike = ["networks"] if missing else [part for part in parts if had.get(part) != now[part]]
    if unlike:
        raise StoreError(
            "changed_task",
            f"The {' and the '.join(unlike)} of the run in '{folder}' can't be built from the bundles in it: an option "
            "of its command changed them, and bundles that are taken home don't hold such options. Write them into the "
            "bundle's configuration and run it again.",
            path=folder,
            parts=unlike,
        )


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
