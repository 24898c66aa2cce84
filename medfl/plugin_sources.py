"""Discovery of plugins: installed packages, plugin files, and disabled plugins."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from medfl.errors import PluginError, did_you_mean
from medfl.hooks import HOOKS

ENTRY_POINT_GROUP = "medfl"
"""Entry-point group of plugins."""

MODULE_PREFIX = "medfl_plugin_"
"""Prefix of the module names of plugin files."""

DISABLE_VARIABLE = "MEDFL_DISABLE"
"""Environment variable with the names of disabled plugins, separated by commas."""


def installed_plugins(problems: list[str]) -> list[tuple[str, importlib.metadata.EntryPoint]]:
    """Return the entry points of all installed plugins with their origins, sorted by name, one per name.

    An origin is the name and version of the package.

    If two packages define different plugins with the same name, append a message to `problems`.
    """
    points: dict[str, tuple[str, importlib.metadata.EntryPoint]] = {}
    origins: dict[int, str] = {}
    for point in sorted(
        importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)
    ):
        origin = point.value
        if point.dist:
            if id(point.dist) not in origins:  # each access to `metadata` parses the file again
                metadata = point.dist.metadata
                origins[id(point.dist)] = f"{metadata['Name']} {metadata['Version']}"
            origin = origins[id(point.dist)]
        if point.name not in points:
            points[point.name] = (origin, point)
        elif points[point.name][1].value != point.value:
            problems.append(
                f"Two installed packages have a plugin '{point.name}': {points[point.name][0]} and {origin}. "
                "The first is used; uninstall one of them."
            )
    return list(points.values())


def load_plugin_file(path: Path, files: dict[str, ModuleType]) -> ModuleType:
    """Import a plugin file as the module ``medfl_plugin_<stem>``, add the module to `files`, and return it."""
    name = f"{MODULE_PREFIX}{path.stem}"
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


def hook_lookalike_warnings(name: str, plugin: Any) -> list[str]:
    """Return warnings about a plugin's functions that look like a hook but are not one.

    Args:
        name: Name of the plugin, for the messages.
        plugin: Module of the plugin.
    """
    warnings = []
    for key, value in sorted(getattr(plugin, "__dict__", {}).items()):
        if not key.startswith("medfl_") or not inspect.isroutine(value):
            continue
        marked = hasattr(value, "medfl_impl")
        if key not in HOOKS and (marked or value.__module__ == plugin.__name__):
            hint = did_you_mean(key, HOOKS)
            warnings.append(f"Plugin '{name}' has '{key}', which is not a hook and is ignored. {hint}")
        elif key in HOOKS and not marked:
            warnings.append(f"Plugin '{name}' has '{key}' without @hookimpl, so it is ignored. Add @hookimpl.")
    return warnings


def no_hook_warning(name: str) -> str:
    """Return the warning about a plugin without hooks."""
    return (
        f"Plugin '{name}' has no hook, so it adds nothing: expected a function such as `medfl_methods` with "
        "@hookimpl. `medfl new-method NAME` writes a file with a hook."
    )


def describe_error(error: BaseException) -> str:
    """Format an exception in one line."""
    return f"{type(error).__name__}: {error}".rstrip(": ").rstrip(".")


def disabled_plugins(disabled: Iterable[str], known: Collection[str]) -> set[str]:
    """Return the names of the plugins that the user or the environment disables.

    Raises:
        PluginError: If a name is unknown.
    """
    by_environment = {
        name.strip(): f"disabled by {DISABLE_VARIABLE}" for name in os.environ.get(DISABLE_VARIABLE, "").split(",")
    }
    names = by_environment | dict.fromkeys(disabled, "to be disabled")
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


def ambiguity_message(kind: str, name: str, plugins: Sequence[str]) -> str:
    """Return the message for a name that several plugins claim."""
    what = f"{kind.replace('_', ' ').capitalize()} '{name}'"
    if len(set(plugins)) == 1:
        return f"{what} is listed twice by plugin '{plugins[0]}'. {plugin_advice(plugins[0])}"
    return (
        f"{what} is listed by several plugins: {', '.join(map(repr, plugins))}. "
        f"Disable all but one, for example with --no-plugin {plugins[-1]} or {DISABLE_VARIABLE}={plugins[-1]}."
    )


def plugin_advice(plugin: str) -> str:
    """Return the advice for a broken plugin."""
    return f"Report this to the plugin's author, or disable the plugin with --no-plugin {plugin}."
