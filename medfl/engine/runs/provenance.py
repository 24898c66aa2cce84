"""Find the origin of each setting of a run: the bundle, a preset of the method, a default, or the user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from medfl.contract import Method
from medfl.engine.runs.setting_ids import SETTINGS_ID, default_values, find_clashes
from medfl.errors import SettingsError
from medfl.records.run_file import SettingOrigin
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.types import Meta

BUNDLE, DEFAULT = "bundle", "default of medfl"
"""Origins of a setting's value.

`BUNDLE`: the bundle's files contain the value. `DEFAULT`: neither a file nor the user gave a value.
"""

HIDDEN_OPTIMIZER_OPTIONS = frozenset({"foreach", "fused", "maximize", "capturable", "differentiable"})
"""Options of torch's optimisers that are left out, as they only select an implementation or are rarely used."""


def run_files(bundle_root: Path) -> list[Path]:
    """Return the paths of a bundle's configurations for a run: ``train``, in JSON or YAML, and ``federate.json``.

    Raises:
        SettingsError: If one of the files does not exist.
    """
    files = _config_files(bundle_root)
    for file in files:
        if not file.is_file():
            raise SettingsError(
                "missing_file",
                f"'{bundle_root}' is not a bundle that medfl can run: expected the file '{file}'.",
                path=file,
                bundle=bundle_root,
            )
    return files


def _config_files(bundle_root: Path) -> list[Path]:
    folder = bundle_root / "configs"
    train = [path for suffix in (".json", ".yaml", ".yml") if (path := folder / f"train{suffix}").is_file()]
    return [*(train[:1] or [folder / "train.json"]), folder / "federate.json"]


def bundle_values(bundle_root: Path) -> Meta:
    """Read a bundle's ``train`` and ``federate.json``, and return the value of each id.

    If both files have an id, the value in ``federate.json`` is returned.

    Raises:
        SettingsError: If a file does not contain an object.
    """
    values: Meta = {}
    for path in filter(Path.is_file, _config_files(bundle_root)):
        text = path.read_text(encoding="utf-8")
        try:
            values |= json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (ValueError, TypeError, yaml.YAMLError) as error:
            raise SettingsError(
                "invalid_bundle_file", f"expected an object in '{path}': {error}. Correct the file.", path=path
            ) from None
    return values


def setting_origins(
    task: Task,
    bundle: Meta,
    given_by: str,
    *,
    settings: Settings,
    execution: Execution,
    method: Method,
    method_args: Meta,
) -> dict[str, SettingOrigin]:
    """Return the value and the origin of each setting of a run.

    Args:
        task: Task of the run.
        bundle: Values in the bundle's files, as `bundle_values` returns them.
        given_by: Origin of values that differ from the bundle's, for example ``command line``.
        settings: Settings of the run.
        execution: Execution of the run.
        method: The method.
        method_args: Settings of the method that were given.
    """
    run = settings.model_dump(mode="json") | execution.model_dump(mode="json")
    facts = {"network_name": task.network, "metrics": list(task.metrics), "loss": type(task.loss).__name__}
    optimizer, described = _optimizer_options(task, bundle.get("optimizer", {}))
    settings_there = bundle.get(SETTINGS_ID)
    ids = {name: value for name, value in bundle.items() if name not in find_clashes(bundle)}
    written = (dict(settings_there) if isinstance(settings_there, Mapping) else {}) | ids
    own = {name: value for name, value in written.items() if not _is_computed(value)}
    defaults = {name: value for name, value in default_values().items() if name not in written}
    own["loss"] = str(own.get("loss", {}).get("_target_", "")).rpartition(".")[2]
    table = origin_table(run | facts, own, given_by, DEFAULT, defaults)
    table |= origin_table(optimizer, described, given_by, "default of torch")
    stated = bundle.get("method_args", {})
    if task.start is not None:  # the path to it may contain names of users
        table["start"] = table["start"].model_copy(update={"value": task.start.source})
    table |= method_table(method.model_dump(mode="json"), method_args, stated, method.presets, given_by)
    return table


def _optimizer_options(task: Task, written: Meta) -> tuple[Meta, Meta]:
    """Return the options of the optimiser that the run uses, and those in the bundle, both as ``optimizer.NAME``."""
    built = task.optimizer([nn.Parameter(torch.zeros(1))])
    in_use = {"optimizer.name": type(built).__name__}
    in_use |= {
        f"optimizer.{name}": value for name, value in built.defaults.items() if name not in HIDDEN_OPTIMIZER_OPTIONS
    }
    stated = {f"optimizer.{name}": value for name, value in written.items() if not _is_computed(value)}
    stated["optimizer.name"] = str(written.get("_target_", "")).rpartition(".")[2]
    return in_use, stated


def origin_table(
    effective: Meta, bundle: Meta, given_by: str, default: str, defaults: Meta | None = None
) -> dict[str, SettingOrigin]:
    """Return the value and the origin of each of several settings that a bundle's files may set.

    A value that the bundle's files contain comes from the bundle. A value that differs from the one in the files
    comes from the user. A value that the files don't contain is a default, unless it differs from the known default.

    Args:
        effective: Maps the dotted name of each setting to the value that the run uses.
        bundle: Maps the same names to the values in the bundle's files.
        given_by: Origin of values that differ from the bundle's, for example ``command line``.
        default: Origin of values that the bundle does not name, for example ``default of medfl``.
        defaults: Maps the same names to the known defaults.
    """
    known = {name: _to_json(value) for name, value in (defaults or {}).items()}
    table = {}
    for name, value in effective.items():
        json_value = _to_json(value)
        if name not in bundle:
            origin = default if known.get(name, json_value) == json_value else given_by
        elif _to_json(bundle[name]) == json_value:
            origin = BUNDLE
        else:
            origin = given_by
        table[name] = SettingOrigin(value=json_value, origin=origin)
    return table


def method_table(
    effective: Meta, args: Meta, bundle: Meta, presets: Mapping[str, Meta], given_by: str
) -> dict[str, SettingOrigin]:
    """Return the value and the origin of each setting of a method. The keys are the names ``method_args.NAME``.

    Args:
        effective: All settings of the method.
        args: Settings that were given, possibly with ``preset``.
        bundle: Settings that the bundle's files contain.
        presets: Presets of the method.
        given_by: Origin of settings that are not in the bundle's files.
    """
    preset = args.get("preset")
    table = {}
    for name, value in effective.items():
        if name in args:
            origin = BUNDLE if name in bundle and bundle[name] == args[name] else given_by
        elif name in presets.get(str(preset), {}):
            origin = f"preset {preset}"
        else:
            origin = "default of the method"
        table[f"method_args.{name}"] = SettingOrigin(value=_to_json(value), origin=origin)
    return table


def _to_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _is_computed(value: Any) -> bool:
    """Return whether a value in a bundle's files is a MONAI expression or reference, which can't be compared."""
    return isinstance(value, str) and value[:1] in "$@%"
