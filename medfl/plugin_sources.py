"""Sources of plugins: installed packages and files, and which of them are left out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from medfl.errors import PluginError, did_you_mean
from medfl.hooks import HOOKS

GROUP = "medfl"
"""The entry-point group of plugins."""

PREFIX = "medfl_plugin_"
"""How the names of modules begin that plugin files become."""

DISABLE = "MEDFL_DISABLE"
"""Environment variable: names of plugins to leave out, separated by commas."""


def installed(problems: list[str]) -> list[tuple[str, importlib.metadata.EntryPoint]]:
    """Entry points of the group with where they come from, sorted by name; one for each name."""
    points: dict[str, tuple[str, importlib.metadata.EntryPoint]] = {}
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        if point.name not in points:
            points[point.name] = (origin, point)
        elif points[point.name][1].value != point.value:
            problems.append(
                f"Two installed packages have a plugin '{point.name}': {points[point.name][0]} and {origin}. "
                "The first is used; uninstall one of them."
            )
    return list(points.values())


def load_file(path: Path, files: dict[str, ModuleType]) -> ModuleType:
    """Import a plugin file as ``medfl_plugin_<stem>``, and note it in `files`."""
    name = f"{PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # the suffix is .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    files[name] = module
    return module


def look_alikes(name: str, plugin: Any) -> list[str]:
    """Warnings for functions that are named like a hook and are none."""
    warnings = []
    for key, value in sorted(getattr(plugin, "__dict__", {}).items()):
        if not key.startswith("medfl_") or not inspect.isroutine(value):
            continue
        marked = hasattr(value, "medfl_impl")
        if key not in HOOKS and (marked or value.__module__ == plugin.__name__):
            warnings.append(f"Plugin '{name}' has '{key}', which is no hook and is ignored. {did_you_mean(key, HOOKS)}")
        elif key in HOOKS and not marked:
            warnings.append(f"Plugin '{name}' has '{key}' without @hookimpl, so it is ignored. Mark it.")
    return warnings


def left_out(disabled: Iterable[str], known: Collection[str]) -> set[str]:
    """Names of plugins that the user or the environment leaves out.

    Raises:
        PluginError: If one is unknown.
    """
    by_environment = {name.strip(): f"named in {DISABLE}" for name in os.environ.get(DISABLE, "").split(",")}
    names = by_environment | dict.fromkeys(disabled, "to be left out")
    names.pop("", None)
    for name, how in names.items():
        if name not in known:
            raise PluginError(
                "unknown_choice",
                f"Unknown plugin '{name}' ({how}). {did_you_mean(name, known)}",
                what="plugin",
                choice=name,
            )
    return set(names)
