"""Loading of plugins, and the registry of their records.

`medfl.hooks` documents the hooks of a plugin. This module also exports the names that a plugin's author needs. A broken
plugin is reported in `Registry.problems`; all other plugins work.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pluggy

from medfl import hooks
from medfl.errors import PluginError, SettingsError, did_you_mean
from medfl.hooks import (
    AdversaryRecord,
    AttackRecord,
    BackendRecord,
    CommandRecord,
    DatasetRecord,
    MethodRecord,
    NetworkAssignmentRecord,
    NetworkRecord,
    ObjectiveRecord,
    PartitionRecord,
    PluginRecord,
    PretrainedWeightsRecord,
    PrivacyMechanismRecord,
    RobustRuleRecord,
    RunLocation,
    SectionRecord,
    hookimpl,
    read_method_index,
)
from medfl.plugin_sources import (
    ambiguity_message,
    describe_error,
    disabled_plugins,
    hook_lookalike_warnings,
    installed_plugins,
    load_plugin_file,
    no_hook_warning,
    plugin_advice,
)
from medfl.utils.nested import merge_nested

__all__ = [
    "DatasetRecord",
    "MethodRecord",
    "NetworkAssignmentRecord",
    "NetworkRecord",
    "ObjectiveRecord",
    "PartitionRecord",
    "PretrainedWeightsRecord",
    "PrivacyMechanismRecord",
    "RobustRuleRecord",
    "AdversaryRecord",
    "AttackRecord",
    "Registry",
    "SectionRecord",
    "hookimpl",
    "known_names",
    "load_plugins",
    "read_method_index",
    "look_up",
]

_logger = logging.getLogger(__name__)


class Registry:
    """Records of all loaded plugins. Created by `load_plugins`.

    Attributes:
        plugins: Origin of each loaded plugin by name: its package with version, or its file.
        problems: Problems with plugins, one message each, to show as warnings.

    Each further attribute contains the records of one kind by name, for example `methods`. Names that two plugins list
    are left out.
    """

    def __init__(self) -> None:
        self.plugins: dict[str, str] = {}
        self.problems: list[str] = []
        self.methods: dict[str, MethodRecord] = {}
        self.networks: dict[str, NetworkRecord] = {}
        self.networks_by_site: dict[str, NetworkAssignmentRecord] = {}
        self.partitions: dict[str, PartitionRecord] = {}
        self.datasets: dict[str, DatasetRecord] = {}
        self.objectives: dict[str, ObjectiveRecord] = {}
        self.robust_rules: dict[str, RobustRuleRecord] = {}
        self.privacy_mechanisms: dict[str, PrivacyMechanismRecord] = {}
        self.adversaries: dict[str, AdversaryRecord] = {}
        self.attacks: dict[str, AttackRecord] = {}
        self.report_sections: dict[str, SectionRecord] = {}
        self.commands: dict[str, CommandRecord] = {}
        self.backends: dict[str, BackendRecord] = {}
        self.pretrained_weights: dict[str, PretrainedWeightsRecord] = {}
        self._claims: dict[tuple[str, str], list[tuple[str, PluginRecord]]] = {}
        self._files: dict[str, ModuleType] = {}
        self._manager = pluggy.PluginManager("medfl")
        self._manager.add_hookspecs(hooks.Hooks)

    def plugins_listing(self, kind: str, name: str) -> list[str]:
        """Return the plugins that list a name of a kind: none if it is unknown, several if it is ambiguous."""
        return [plugin for plugin, _ in self._claims.get((kind, name), [])]

    def check_name(self, kind: str, name: str) -> None:
        """Raise PluginError unless exactly one plugin lists a name; the name's target is not imported."""
        self._claim(kind, name)

    def method_class(self, name: str) -> Any:
        """Return the class of a method.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported or is not a method.
        """
        kind = self._resolve("method", name)
        if problem := hooks.method_problem(name, kind):
            raise problem
        return kind

    def network(self, name: str) -> Any:
        """Return the class of a network.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        return self._resolve("network", name)

    def network_assignment(self, name: str) -> Any:
        """Return the class of a network assignment, a rule for which site trains which network.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        return self._resolve("network_assignment", name)

    def partition(self, name: str) -> Any:
        """Return the function of a partition, which splits a pooled data set into sites.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        return self._resolve("partition", name)

    def dataset(self, name: str) -> Any:
        """Return the class that describes and prepares a data set, with the data set's options as fields.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        return self._resolve("dataset", name)

    def synthetic(self, name: str) -> Any:
        """Return the function that writes a synthetic release of a data set.

        Raises:
            PluginError: If `network` raises it, or the data set has no synthetic release.
        """
        plugin, record = self._claim("dataset", name)
        assert isinstance(record, DatasetRecord)
        if not record.synthetic:
            known = (other for other, listed in self.datasets.items() if listed.synthetic)
            raise PluginError(
                "missing_synthetic_release",
                f"The data set '{name}' has no synthetic release. {did_you_mean(name, known)}",
                dataset=name,
            )
        return self._import(f"synthetic release of '{name}'", plugin, record.synthetic)

    def adversary(self, name: str) -> Any:
        """Return the class of a poisoning attack.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        return self._resolve("adversary", name)

    def attack_options(self, name: str) -> Any:
        """Return the class of the options of an attack on finished runs.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        return self._resolve("attack", name)

    def attack_results(self, name: str) -> Any:
        """Return the class of the results file of an attack on finished runs.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        plugin, record = self._claim("attack", name)
        assert isinstance(record, AttackRecord)
        return self._import(f"results of attack '{name}'", plugin, record.results)

    def report_section(self, name: str) -> Any:
        """Return the class of a report section by its id.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        return self._resolve("report_section", name)

    def make_method(self, name: str, args: Mapping[str, Any]) -> Any:
        """Create a method from its settings.

        Args:
            name: Name of the method, in `methods`.
            args: Settings of the method. ``preset`` names a set of values in the class's ``presets``; explicit settings
                override its values.

        Raises:
            PluginError: If `method_class` raises it.
            SettingsError: If a setting or the preset is unknown or invalid.
        """
        from medfl.settings import read_settings

        kind, values = self.method_class(name), dict(args)
        preset = values.pop("preset", None)
        if preset is not None:
            if preset not in list(kind.presets):
                hint = did_you_mean(str(preset), kind.presets)
                raise SettingsError(
                    "unknown_choice",
                    f"Method '{name}' has no preset {preset!r} (option 'preset'). {hint}",
                    what="preset",
                    choice=str(preset),
                    method=name,
                )
            values = merge_nested(kind.presets[preset], values)
        return read_settings(kind, values, where=f"method '{name}'")

    def notify(self, event: str, **facts: Any) -> None:
        """Call all observers of an event. An observer that raises is logged by name and does not affect the run.

        Args:
            event: Name of an observing hook, for example ``medfl_round_ended``.
            facts: Arguments of the hook by name, except ``registry``, which is this object. Each observer gets its own
                copy.
        """
        for hook in reversed(getattr(self._manager.hook, event).get_hookimpls()):  # the order in which pluggy calls
            try:
                copies = {name: copy.deepcopy(facts[name]) for name in hook.argnames if name in facts}
                hook.function(**copies, **({"registry": self} if "registry" in hook.argnames else {}))
            except (Exception, SystemExit) as error:
                _logger.warning(
                    "Plugin '%s' failed in %s; the run continues: %s", hook.plugin_name, event, describe_error(error)
                )

    @property
    def hook(self) -> Any:
        """The hooks as functions that call all plugins (pluggy's ``PluginManager.hook``)."""
        return self._manager.hook

    def run_location(self, path: Path) -> RunLocation | None:
        """Return the location of the runs that belong to a plugin's file or folder; None if no plugin knows it.

        Raises:
            MedflError: If a plugin knows the file or folder but can't read it.
        """
        location: RunLocation | None = self._manager.hook.medfl_run_location(path=str(path))
        return location

    def command(self, name: str) -> Any:
        """Return the function or `typer.Typer` of a command.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        return self._resolve("command", name)

    def backend(self, name: str) -> Any:
        """Return the class of a backend, which executes a run on other machines.

        Raises:
            PluginError: If the name is unknown or ambiguous, or its target can't be imported.
        """
        return self._resolve("backend", name)

    def pretrained_weights_function(self, name: str, field: Literal["target", "convert", "read"]) -> Any:
        """Return a function of the record of pretrained weights.

        Args:
            name: Name of the weights.
            field: Field of the record, not empty, with the function's ``module:function``.

        Raises:
            PluginError: If the name is unknown or ambiguous, or the function can't be imported.
        """
        plugin, record = self._claim("pretrained_weights", name)
        return self._import(f"pretrained weights '{name}'", plugin, getattr(record, field))

    def _resolve(self, kind: str, name: str) -> Any:
        """Import the target of a name."""
        plugin, record = self._claim(kind, name)
        return self._import(f"{kind.replace('_', ' ')} '{name}'", plugin, record.target)

    def _claim(self, kind: str, name: str) -> tuple[str, PluginRecord]:
        """Return the plugin that lists a name, and its record. Raise if the name is unknown or ambiguous."""
        claims = self._claims.get((kind, name), [])
        if not claims:
            known = [other for other_kind, other in self._claims if other_kind == kind]
            hint = " `--plugins FILE` loads a method from a file of your own." if kind == "method" else ""
            hint += "".join(f"\n  Plugin problem: {text}" for text in self.problems)
            raise PluginError(
                "unknown_choice",
                f"Unknown {kind.replace('_', ' ')} '{name}'. {did_you_mean(name, known, _listing(kind))}{hint}",
                what=kind,
                choice=name,
                problems=self.problems,
            )
        if len(claims) > 1:
            raise PluginError(
                "ambiguous_name",
                ambiguity_message(kind, name, self.plugins_listing(kind, name)),
                what=kind,
                name=name,
                plugins=self.plugins_listing(kind, name),
            )
        return claims[0]

    def _import(self, what: str, plugin: str, target: str) -> Any:
        """Import a target. Raise a readable error if the import fails."""
        where = f"{what} of plugin '{plugin}' (target '{target}')"
        module_name, _, attribute = target.partition(":")
        try:
            module = self._files.get(module_name) or importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            raise PluginError(
                "failed_import",
                f"Can't import {where}: {describe_error(error)}. {plugin_advice(plugin)}",
                target=target,
                plugin=plugin,
                cause=type(error).__name__,
            ) from error
        if not hasattr(module, attribute):
            hint = did_you_mean(attribute, (key for key in vars(module) if not key.startswith("_")))
            raise PluginError(
                "missing_attribute",
                f"Can't find '{attribute}' for {where}. {hint} {plugin_advice(plugin)}",
                target=target,
                plugin=plugin,
                attribute=attribute,
            )
        return getattr(module, attribute)

    def _add(self, name: str, origin: str, plugin: Any) -> None:
        """Register a loaded plugin: warn about functions that look like hooks, then collect its records."""
        lookalikes = hook_lookalike_warnings(name, plugin)
        self.problems += lookalikes
        try:
            self._manager.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._manager.has_plugin(name):
                self._manager.unregister(name=name)
            self.problems.append(f"Plugin '{name}' ({origin}) is not loaded: {error}")
            return
        self.plugins[name] = origin
        if not lookalikes and not self._manager.get_hookcallers(plugin):
            self.problems.append(no_hook_warning(name))
        for record_class in hooks.RECORDS:
            for hook in getattr(self._manager.hook, f"medfl_{record_class.plural}").get_hookimpls():
                if hook.plugin_name == name:
                    self._take(record_class, name, hook.function)

    def _take(self, expected: type[PluginRecord], plugin: str, hook: Any) -> None:
        """Collect the records of one hook of a plugin; invalid records become problems."""
        try:
            records = list(hook())
        except (Exception, SystemExit) as error:
            self.problems.append(
                f"Hook medfl_{expected.plural} of plugin '{plugin}' failed: {describe_error(error)}. "
                f"{plugin_advice(plugin)}"
            )
            return
        for record in records:
            if not isinstance(record, expected) or not all(record.target.partition(":")):
                self.problems.append(
                    f"Hook medfl_{expected.plural} of plugin '{plugin}' must list {expected.__name__} with a target "
                    f"'module:name', got {record!r}, which is ignored. {plugin_advice(plugin)}"
                )
            else:
                self._claims.setdefault((expected.kind, record.name), []).append((plugin, record))

    def _settle(self) -> None:
        """Fill the public mappings; a name that is claimed more than once becomes a problem."""
        for (kind, name), claims in sorted(self._claims.items()):
            if len(claims) == 1:
                record = claims[0][1]
                getattr(self, record.plural)[name] = record
            else:
                self.problems.append(ambiguity_message(kind, name, self.plugins_listing(kind, name)))


def load_plugins(files: Iterable[str | Path] = (), disabled: Iterable[str] = ()) -> Registry:
    """Find and load all plugins.

    Args:
        files: Plugin files. Each becomes the module ``medfl_plugin_<stem>`` and the plugin ``<stem>``.
        disabled: Names of plugins to disable, besides those in the environment variable ``MEDFL_DISABLE``.

    Returns:
        Registry with the records of all plugins. Its `problems` report plugins that can't be loaded.

    Raises:
        PluginError: If a file does not exist, two plugins have the same name, or a disabled name is unknown.
    """
    registry = Registry()
    points = installed_plugins(registry.problems)
    sources: dict[str, tuple[str, Any]] = {point.name: (origin, point.load) for origin, point in points}
    for path in map(Path, files):
        if path.suffix != ".py" or not path.is_file():
            raise PluginError(
                "missing_file",
                f"Expected a plugin file with the suffix .py at '{path}', found none. Check the path.",
                path=path,
            )
        if path.stem in sources:
            raise PluginError(
                "duplicate_name",
                f"Plugin file '{path}' has the name of another plugin, '{path.stem}' ({sources[path.stem][0]}). "
                "Rename the file.",
                path=path,
                name=path.stem,
                origin=sources[path.stem][0],
            )
        sources[path.stem] = (str(path), partial(load_plugin_file, path, registry._files))
    skipped = disabled_plugins(disabled, sources)
    for name, (origin, load) in sources.items():
        if name in skipped:
            continue
        try:
            plugin = load()
        except (Exception, SystemExit) as error:
            registry.problems.append(
                f"Plugin '{name}' ({origin}) can't be loaded: {describe_error(error)}. {plugin_advice(name)}"
            )
        else:
            registry._add(name, origin, plugin)
    registry._settle()
    _latest_registries.update(dict.fromkeys(registry._claims, registry))
    return registry


_latest_registries: dict[tuple[str, str], Registry] = {}
"""Mapping from the kind and name of each record to the last registry with this record that this process loaded."""


def look_up(kind: str, name: str, base: type) -> Any:
    """Return the class of an objective, robust rule or privacy mechanism from the plugins that this process has loaded.

    Use it if no registry is available: data lists, settings and run files contain such names. When a run is prepared,
    `Registry.check_name` checks its names. If no loaded plugin has the name, this function loads the installed plugins.

    Args:
        kind: Kind of a record, for example ``objective``.
        name: Name of the record.
        base: Required base class.

    Raises:
        PluginError: If the name is unknown or ambiguous, or its target can't be imported or is not a subclass of
            `base`.
    """
    registry = _latest_registries.get((kind, name)) or load_plugins()
    resolved = registry._resolve(kind, name)
    if isinstance(resolved, type) and issubclass(resolved, base):
        return resolved
    raise PluginError(
        "wrong_type",
        f"Expected the {kind.replace('_', ' ')} '{name}' to be a subclass of {base.__module__}.{base.__name__}, got "
        f"{resolved!r}. Report this to the plugin's author.",
        what=kind,
        name=name,
        found=repr(resolved),
    )


def known_names(kind: str) -> list[str]:
    """Return the names of a kind in the plugins that are installed or that this process has loaded, sorted."""
    load_plugins()
    return sorted(name for known_kind, name in _latest_registries if known_kind == kind)


def _listing(kind: str) -> str:
    """Return the command that lists the records of a kind, or "" if there is none."""
    plural = next(record.plural for record in hooks.RECORDS if record.kind == kind)
    words = {"report_sections": "list sections", "commands": "--help", "pretrained_weights": "list weights"}
    unlisted = ("networks_by_site", "attacks", "backends")
    return "" if plural in unlisted else f"medfl {words.get(plural, 'list ' + plural.replace('_', '-'))}"
