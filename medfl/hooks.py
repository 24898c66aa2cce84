"""Hooks: the functions with which a plugin adds methods, data sets, commands and more, and observes runs.

A plugin is a module whose functions are marked with `hookimpl`. It is found through an entry point of the group
``medfl``, or given as a file (``--plugin FILE``). Hooks return light records whose targets are strings such as
``"my_package.method:MyMethod"``; a target is imported when it is first used, so that listing everything stays quick.
A plugin that is broken is named in `Registry.problems` and the rest goes on.

The hooks, with their exact signatures. A plugin has any of them::

    medfl_methods() -> list[MethodRecord]
    medfl_networks() -> list[NetworkRecord]
    medfl_networks_by_site() -> list[NetworkAssignmentRecord]
    medfl_partitions() -> list[PartitionRecord]
    medfl_datasets() -> list[DatasetRecord]
    medfl_objectives() -> list[ObjectiveRecord]
    medfl_robust_rules() -> list[RobustRuleRecord]
    medfl_privacy_mechanisms() -> list[PrivacyMechanismRecord]
    medfl_adversaries() -> list[AdversaryRecord]
    medfl_attacks() -> list[AttackRecord]
    medfl_report_sections() -> list[SectionRecord]
    medfl_commands() -> list[CommandRecord]
    medfl_backends() -> list[BackendRecord]
    medfl_run_location(path: str) -> RunLocation | None
    medfl_write_report(folders: list[str], out: str | None) -> str | None
    medfl_compare(folders: list[str], metrics: list[str] | None, baseline: str | None, split: str) -> Any
    medfl_partition_written(folder: str, counts: dict[str, list[int]], classes: list[str]) -> None
    medfl_run_started(run_folder: str, settings: dict[str, Any], tracking: dict[str, Any]) -> None
    medfl_round_ended(run_folder: str, round: int, rows: list[dict[str, Any]]) -> None
    medfl_run_ended(run_folder: str, status: str, registry: Any) -> None

The last four observe. They get copies and may take fewer arguments; what they return is ignored, and one that raises
is logged by name. Nothing here decides numbers inside a step. Of a run between machines the server calls them, and
whoever submitted it once its results have come (`medfl_flare.observers`).
"""

from __future__ import annotations

from typing import Any

import pluggy

from medfl.errors import PluginError
from medfl.plugin_records import (
    ATTACKS_FOLDER,
    METHOD_FACTS,
    PROMISES,
    RECORDS,
    AdversaryRecord,
    AttackRecord,
    BackendRecord,
    Capability,
    CommandRecord,
    DatasetRecord,
    MethodRecord,
    NetworkAssignmentRecord,
    NetworkRecord,
    ObjectiveRecord,
    PartitionRecord,
    PrivacyMechanismRecord,
    Record,
    RobustRuleRecord,
    RunLocation,
    SectionRecord,
    read_method_index,
)

__all__ = [
    "ATTACKS_FOLDER",
    "AdversaryRecord",
    "AttackRecord",
    "BackendRecord",
    "Capability",
    "CommandRecord",
    "DatasetRecord",
    "HOOKS",
    "Hooks",
    "METHOD_FACTS",
    "METHOD_MEMBERS",
    "MethodRecord",
    "NetworkAssignmentRecord",
    "NetworkRecord",
    "ObjectiveRecord",
    "PROMISES",
    "PartitionRecord",
    "PrivacyMechanismRecord",
    "RECORDS",
    "Record",
    "RobustRuleRecord",
    "RunLocation",
    "SectionRecord",
    "hookimpl",
    "method_problem",
    "read_method_index",
]

hookimpl = pluggy.HookimplMarker("medfl")
"""Marks a function of a plugin as a hook."""

_hookspec = pluggy.HookspecMarker("medfl")

METHOD_MEMBERS = (
    *("sends", "sends_meta", "supports", "active_supports", "needs", "active_needs"),
    *(
        "reduces_to",
        "presets",
        "preset_settings",
        "gradient_clip",
        "model_dump",
        "setup",
        "plan",
    ),
    *(
        "execute",
        "check_tensors",
        "filters",
        "aggregate",
        "publish",
        "findings",
        "models",
        "task_of",
        "network_config",
        "predictor",
    ),
)
"""Members of `medfl.contract.Method`, listed here without an import of torch."""


def method_problem(name: str, kind: Any) -> PluginError | None:
    """Return the error for a class that is no method; None for a method.

    Each class has to declare `supports` itself, because its code decides whether the capabilities of a parent hold.
    """
    if not hasattr(kind, "model_validate"):
        text = f"Expected method '{name}' to be a frozen pydantic model such as Averaging; got {kind!r}."
        return PluginError("wrong_type", text, method=name, found=repr(kind))
    missing = [member for member in METHOD_MEMBERS if not hasattr(kind, member) and member not in kind.model_fields]
    if "supports" not in {*missing, *vars(kind)}:
        missing.append("supports")
    if not missing:
        return None
    hints = {"supports": "supports (declared by the class itself: `supports = frozenset()` promises nothing)"}
    return PluginError(
        "missing_members",
        f"Expected method '{name}' to have all that medfl.contract.Method names; {kind!r} lacks "
        f"{', '.join(hints.get(member, member) for member in missing)}. "
        "Add it, or inherit from medfl.toolkit.averaging.Averaging, which has defaults of all but `supports`.",
        method=name,
        members=missing,
    )


class Hooks:
    """The hooks a plugin may implement, as plain functions of the same name."""

    @_hookspec
    def medfl_methods(self) -> list[MethodRecord]:  # type: ignore[empty-body]
        """Methods of this plugin."""

    @_hookspec
    def medfl_networks(self) -> list[NetworkRecord]:  # type: ignore[empty-body]
        """Networks of this plugin."""

    @_hookspec
    def medfl_networks_by_site(self) -> list[NetworkAssignmentRecord]:  # type: ignore[empty-body]
        """Return the network assignments of this plugin: rules for which site trains which network."""

    @_hookspec
    def medfl_partitions(self) -> list[PartitionRecord]:  # type: ignore[empty-body]
        """Partitions of this plugin."""

    @_hookspec
    def medfl_datasets(self) -> list[DatasetRecord]:  # type: ignore[empty-body]
        """Data sets of this plugin."""

    @_hookspec
    def medfl_objectives(self) -> list[ObjectiveRecord]:  # type: ignore[empty-body]
        """Objectives of this plugin."""

    @_hookspec
    def medfl_robust_rules(self) -> list[RobustRuleRecord]:  # type: ignore[empty-body]
        """Robust rules of this plugin."""

    @_hookspec
    def medfl_privacy_mechanisms(self) -> list[PrivacyMechanismRecord]:  # type: ignore[empty-body]
        """Privacy mechanisms of this plugin."""

    @_hookspec
    def medfl_adversaries(self) -> list[AdversaryRecord]:  # type: ignore[empty-body]
        """Poisoning attacks of this plugin, for simulations."""

    @_hookspec
    def medfl_attacks(self) -> list[AttackRecord]:  # type: ignore[empty-body]
        """Attacks on finished runs of this plugin, for studies."""

    @_hookspec
    def medfl_report_sections(self) -> list[SectionRecord]:  # type: ignore[empty-body]
        """Sections of the report of this plugin; they are asked whenever a page is written."""

    @_hookspec
    def medfl_commands(self) -> list[CommandRecord]:  # type: ignore[empty-body]
        """Commands of this plugin. Importing the plugin must be quick: ``medfl --help`` calls this hook."""

    @_hookspec
    def medfl_backends(self) -> list[BackendRecord]:  # type: ignore[empty-body]
        """Backends of this plugin."""

    @_hookspec(firstresult=True)
    def medfl_run_location(self, path: str) -> RunLocation | None:
        """Return where the runs are that `path` stands for, or None if this plugin does not know such files.

        ``medfl monitor`` calls it. Studies and NVFlare's startup kits are found by it.
        """

    @_hookspec(firstresult=True)
    def medfl_write_report(self, folders: list[str], out: str | None) -> str | None:
        """Write a report on run folders and return its path; `out` is None for the usual place.

        `medfl.Run.report` calls it.
        """

    @_hookspec(firstresult=True)
    def medfl_compare(self, folders: list[str], metrics: list[str] | None, baseline: str | None, split: str) -> Any:
        """Return a table that compares run folders, a pandas DataFrame; arguments as in `medfl.compare`."""

    @_hookspec
    def medfl_partition_written(self, folder: str, counts: dict[str, list[int]], classes: list[str]) -> None:
        """``medfl partition`` has written the data lists of all sites below `folder`.

        `counts` maps each site to its number of images of each of the `classes`.
        """

    @_hookspec
    def medfl_run_started(self, run_folder: str, settings: dict[str, Any], tracking: dict[str, Any]) -> None:
        """A run begins or continues.

        `settings` are those of the run, of its optimiser and of its method by name, as in its ``run.json``. `tracking`
        is what MONAI's ``--tracking`` was told (``tracking_uri``, ``experiment_name``, ``run_name``), empty without it.
        """

    @_hookspec
    def medfl_round_ended(self, run_folder: str, round: int, rows: list[dict[str, Any]]) -> None:
        """Round `round` (from 1) is over; `rows` are its rows of metrics, possibly none, and scores of the one before;
        each step of a round has costs of its own.

        A run that goes on in the middle of a round has those of its further steps only; ``metrics.csv`` has all.
        """

    @_hookspec
    def medfl_run_ended(self, run_folder: str, status: str, registry: Any) -> None:
        """A run is over; `status` is that of its ``run.json``.

        `registry`, a `medfl.plugins.Registry`, holds what the plugins of this run offer, those given as files
        included. It is not copied.
        """


HOOKS = tuple(name for name in vars(Hooks) if name.startswith("medfl_"))
"""The names of all hooks."""
