"""Hooks: the functions with which a plugin adds methods, data sets, commands and more, and observes runs.

A plugin is a module with functions that are marked with `hookimpl`. It is found through an entry point of the group
``medfl``, or passed as a file (``--plugin FILE``). Hooks return records whose targets are strings such as
``"my_package.method:MyMethod"``. A target is imported at its first use, so that listing all records is fast. A broken
plugin is reported in `Registry.problems`; all other plugins work.

A plugin may implement any of these hooks, with exactly these signatures:

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
    medfl_pretrained_weights() -> list[PretrainedWeightsRecord]
    medfl_run_location(path: str) -> RunLocation | None
    medfl_write_report(folders: list[str], out: str | None) -> str | None
    medfl_compare(folders: list[str], metrics: list[str] | None, baseline: str | None, split: str) -> Any
    medfl_evaluate(model: str, dataset_dir: str, out: str | None, split: str, device: str) -> Any
    medfl_partition_written(folder: str, counts: dict[str, list[int]], classes: list[str]) -> None
    medfl_run_started(run_folder: str, settings: dict[str, Any], tracking: dict[str, Any]) -> None
    medfl_round_ended(run_folder: str, round: int, rows: list[dict[str, Any]]) -> None
    medfl_run_ended(run_folder: str, status: str, registry: Any) -> None

A record describes one method, data set or other part of a plugin. The last four hooks are observers: they watch runs.
They receive copies and may take fewer arguments. Their return values are ignored, and an observer that raises is logged
by name. No hook changes the numbers inside a step. In a run on other machines, the server calls the observers, and so
does the machine that submitted the run after it has received the results (`medfl_flare.observers`).
"""

from __future__ import annotations

from typing import Any

import pluggy

from medfl.errors import PluginError
from medfl.plugin_records import (
    ATTACKS_FOLDER,
    METHOD_DECLARATIONS,
    RECORDS,
    UNINHERITED_CAPABILITIES,
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
    PluginRecord,
    PretrainedWeightsRecord,
    PrivacyMechanismRecord,
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
    "METHOD_DECLARATIONS",
    "METHOD_MEMBERS",
    "MethodRecord",
    "NetworkAssignmentRecord",
    "NetworkRecord",
    "ObjectiveRecord",
    "UNINHERITED_CAPABILITIES",
    "PartitionRecord",
    "PluginRecord",
    "PretrainedWeightsRecord",
    "PrivacyMechanismRecord",
    "RECORDS",
    "RobustRuleRecord",
    "RunLocation",
    "SectionRecord",
    "hookimpl",
    "method_problem",
    "read_method_index",
]

hookimpl = pluggy.HookimplMarker("medfl")
"""Decorator that marks a function of a plugin as a hook."""

_hookspec = pluggy.HookspecMarker("medfl")
"""Decorator that marks a method of `Hooks` as the specification of a hook."""

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
"""Names of the members that every method has (`medfl.contract.Method`), listed here to avoid an import of torch."""


def method_problem(name: str, kind: Any) -> PluginError | None:
    """Return the error for a class that does not implement the interface of methods; None if it does.

    Each class must declare `supports` itself, because its own code decides whether its parent's capabilities still
    hold.
    """
    if not hasattr(kind, "model_validate"):
        text = f"Expected method '{name}' to be a frozen pydantic model such as Averaging, got {kind!r}."
        return PluginError("wrong_type", text, method=name, found=repr(kind))
    missing = [member for member in METHOD_MEMBERS if not hasattr(kind, member) and member not in kind.model_fields]
    if "supports" not in {*missing, *vars(kind)}:
        missing.append("supports")
    if not missing:
        return None
    hints = {"supports": "supports (declared by the class itself: `supports = frozenset()` means no capability)"}
    return PluginError(
        "missing_members",
        f"Expected method '{name}' to have all members of medfl.contract.Method; {kind!r} lacks "
        f"{', '.join(hints.get(member, member) for member in missing)}. "
        "Add them, or inherit from medfl.toolkit.averaging.Averaging, which has all of them except `supports`.",
        method=name,
        members=missing,
    )


class Hooks:
    """Specifications of the hooks. A plugin implements a hook as a function of the same name."""

    @_hookspec
    def medfl_methods(self) -> list[MethodRecord]:  # type: ignore[empty-body]
        """Return the methods of this plugin."""

    @_hookspec
    def medfl_networks(self) -> list[NetworkRecord]:  # type: ignore[empty-body]
        """Return the networks of this plugin."""

    @_hookspec
    def medfl_networks_by_site(self) -> list[NetworkAssignmentRecord]:  # type: ignore[empty-body]
        """Return the network assignments of this plugin: rules for which site trains which network."""

    @_hookspec
    def medfl_partitions(self) -> list[PartitionRecord]:  # type: ignore[empty-body]
        """Return the partitions of this plugin: functions that split a pooled data set into sites."""

    @_hookspec
    def medfl_datasets(self) -> list[DatasetRecord]:  # type: ignore[empty-body]
        """Return the data sets of this plugin."""

    @_hookspec
    def medfl_objectives(self) -> list[ObjectiveRecord]:  # type: ignore[empty-body]
        """Return the objectives of this plugin: kinds of tasks, such as classification."""

    @_hookspec
    def medfl_robust_rules(self) -> list[RobustRuleRecord]:  # type: ignore[empty-body]
        """Return the robust rules of this plugin, which replace the mean of the updates."""

    @_hookspec
    def medfl_privacy_mechanisms(self) -> list[PrivacyMechanismRecord]:  # type: ignore[empty-body]
        """Return the privacy mechanisms of this plugin."""

    @_hookspec
    def medfl_adversaries(self) -> list[AdversaryRecord]:  # type: ignore[empty-body]
        """Return the poisoning attacks of this plugin, for simulations."""

    @_hookspec
    def medfl_attacks(self) -> list[AttackRecord]:  # type: ignore[empty-body]
        """Return the privacy attacks of this plugin, which a study or ``medfl attack`` executes on finished runs."""

    @_hookspec
    def medfl_report_sections(self) -> list[SectionRecord]:  # type: ignore[empty-body]
        """Return the report sections of this plugin. Called each time a report is written."""

    @_hookspec
    def medfl_commands(self) -> list[CommandRecord]:  # type: ignore[empty-body]
        """Return the commands of this plugin.

        Importing the plugin must be fast, because ``medfl --help`` calls this hook.
        """

    @_hookspec
    def medfl_backends(self) -> list[BackendRecord]:  # type: ignore[empty-body]
        """Return the backends of this plugin: launchers that execute a run on other machines."""

    @_hookspec
    def medfl_pretrained_weights(self) -> list[PretrainedWeightsRecord]:  # type: ignore[empty-body]
        """Return the pretrained weights of this plugin: files of pip packages from which networks can start."""

    @_hookspec(firstresult=True)
    def medfl_run_location(self, path: str) -> RunLocation | None:
        """Return the location of the runs that belong to the file or folder `path`.

        Return None if this plugin does not know the path. ``medfl monitor`` calls this hook, for example to find the
        runs of a study (a file that lists methods, data sets and seeds to compare) or of an NVFlare startup kit (a
        participant's folder with certificates and settings).
        """

    @_hookspec(firstresult=True)
    def medfl_write_report(self, folders: list[str], out: str | None) -> str | None:
        """Write a report on run folders and return its path; `out` is None for the default path.

        `medfl.Run.report` calls it.
        """

    @_hookspec(firstresult=True)
    def medfl_compare(self, folders: list[str], metrics: list[str] | None, baseline: str | None, split: str) -> Any:
        """Return a table that compares run folders, as a pandas DataFrame.

        Args:
            folders: Run folders.
            metrics: Names of metrics; None uses the first metric of the task.
            baseline: Label of the row with which the others are compared; None uses the first row.
            split: ``test`` or ``val``.
        """

    @_hookspec(firstresult=True)
    def medfl_evaluate(self, model: str, dataset_dir: str, out: str | None, split: str, device: str) -> Any:
        """Evaluate finished models on the data of sites, as a list of `medfl.records.evaluation.Evaluation`.

        Args:
            model: Run folder, ``RUN#SITE``, or folder of an exported bundle.
            dataset_dir: Folder of a prepared site, or folder with one folder for each site.
            out: Folder to write; None chooses one in the run folder.
            split: ``test`` or ``all``.
            device: ``auto``, ``cpu`` or ``cuda:N``.
        """

    @_hookspec
    def medfl_partition_written(self, folder: str, counts: dict[str, list[int]], classes: list[str]) -> None:
        """Observe that ``medfl partition`` has written the data lists of all sites below `folder`.

        `counts` maps each site to its number of images of each of the `classes`.
        """

    @_hookspec
    def medfl_run_started(self, run_folder: str, settings: dict[str, Any], tracking: dict[str, Any]) -> None:
        """Observe that a run starts or continues.

        `settings` has the settings of the run, its optimiser and its method by name, as in its ``run.json``. `tracking`
        has the values of MONAI's option ``--tracking`` (``tracking_uri``, ``experiment_name``, ``run_name``); it is
        empty without it.
        """

    @_hookspec
    def medfl_round_ended(self, run_folder: str, round: int, rows: list[dict[str, Any]]) -> None:
        """Observe that a round, counted from 1, has ended.

        `rows` are the round's rows of the metrics file, possibly none, and the scores of the round before. Each step of
        a round has its own cost rows (seconds and bytes). After a restart in the middle of a round, `rows` has only the
        costs of the later steps; ``metrics.csv`` has all of them.
        """

    @_hookspec
    def medfl_run_ended(self, run_folder: str, status: str, registry: Any) -> None:
        """Observe that a run has ended with the `status` in its ``run.json``.

        `registry`, a `medfl.plugins.Registry`, contains the records of this run's plugins, including plugin files. It
        is not copied.
        """


HOOKS = tuple(name for name in vars(Hooks) if name.startswith("medfl_"))
"""Names of all hooks."""
