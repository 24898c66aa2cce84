"""Hooks: the functions with which a plugin adds methods, data sets, commands and more, and observes runs.

A plugin is a module whose functions are marked with `hookimpl`. It is found through an entry point of the group
``medfl``, or given as a file (``--plugin FILE``). Hooks return light records whose targets are strings such as
``"my_package.method:MyMethod"``; a target is imported when it is first used, so that listing everything stays quick.
A plugin that is broken is named in `Registry.problems` and the rest goes on.

The hooks, with their exact signatures. A plugin has any of them::

    medfl_methods() -> list[MethodRecord]
    medfl_networks() -> list[NetworkRecord]
    medfl_partitions() -> list[PartitionRecord]
    medfl_datasets() -> list[DatasetRecord]
    medfl_adversaries() -> list[AdversaryRecord]
    medfl_report_sections() -> list[SectionRecord]
    medfl_commands() -> list[CommandRecord]
    medfl_backends() -> list[BackendRecord]
    medfl_run_location(path: str) -> RunLocation | None
    medfl_partition_written(folder: str, counts: dict[str, list[int]], classes: list[str]) -> None
    medfl_run_started(run_folder: str, settings: dict[str, Any], tracking: dict[str, Any]) -> None
    medfl_round_ended(run_folder: str, round: int, rows: list[dict[str, Any]]) -> None
    medfl_run_ended(run_folder: str, status: str, registry: Registry) -> None

The last four observe. They get copies and may take fewer arguments; what they return is ignored, and one that raises
is logged by name. Nothing here decides numbers inside a step. Of a run between machines the server calls them, and
whoever submitted it once its results have come (`medfl_flare.observers`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pluggy

from medfl.errors import PluginError

hookimpl = pluggy.HookimplMarker("medfl")
"""Marks a function of a plugin as a hook."""

_hookspec = pluggy.HookspecMarker("medfl")


class Record:
    """Base class of the records that hooks list.

    Attributes:
        kind: Name of the kind of thing, in the singular, as it stands in messages.
        plural: The same in the plural. The hook is ``medfl_<plural>``, and so is the table of `medfl.plugins.Registry`.
        name: Name that users type.
        target: ``module:attribute``, imported when it is first used.
    """

    kind: ClassVar[str]
    plural: ClassVar[str]
    name: str
    target: str


@dataclass(frozen=True)
class NetworkRecord(Record):
    """A network.

    Attributes:
        name: What users type.
        target: ``module:Class``.
        summary: One line.
    """

    kind = "network"
    plural = "networks"
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class PartitionRecord(Record):
    """A way to split a pooled data set among sites.

    Attributes:
        name: What users type.
        target: ``module:function``.
        summary: One line.
    """

    kind = "partition"
    plural = "partitions"
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class MethodRecord(Record):
    """A method.

    Attributes:
        name: What users type.
        target: ``module:Class``, a frozen pydantic model that fulfils `medfl.contract.Method`.
        family: Methods of a kind are listed together, for example ``averaging`` or ``personal``.
        paper: Where it was published, for example ``McMahan et al., AISTATS 2017``; may be empty.
        sends: What leaves a site, the same as `medfl.contract.Method.sends`; updates of the model where it is not said,
            empty: nothing does.
        unlike_networks: Whether sites may have different networks.
        summary: One line.
        needs: What it needs of a task, the same as `medfl.contract.Method.needs`.
    """

    kind = "method"
    plural = "methods"
    name: str
    target: str
    family: str
    paper: str
    sends: Mapping[str, str] = field(default_factory=lambda: {"model/": "update"})
    unlike_networks: bool = False
    summary: str = ""
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DatasetRecord(Record):
    """A data set that ``medfl prep`` and studies can prepare.

    Attributes:
        name: What users type.
        target: ``module:Class``, a `medfl.data.ingest.spec.DatasetSpec`.
        modality: What kind of images these are; empty where it is the user who knows.
        licence: Terms of use; empty where it is the user who knows.
        summary: One line.
        phantom: ``module:function`` that writes a made-up release, ``write_release(folder, ..., seed)``; may be empty.
        phantom_options: Options of the data set that fit the made-up release, where the defaults don't; paths are
            relative to its folder.
        order: They are listed in the order of these numbers, then of their names.
    """

    kind = "dataset"
    plural = "datasets"
    name: str
    target: str
    modality: str = ""
    licence: str = ""
    summary: str = ""
    phantom: str = ""
    phantom_options: Mapping[str, Any] = field(default_factory=dict)
    order: int = 100


@dataclass(frozen=True)
class AdversaryRecord(Record):
    """A poisoning attack, for the setting ``poison`` of simulations.

    Attributes:
        name: What users type.
        target: ``module:Class``, a `DataPoison` or `ReplyPoison` of `medfl.engine.adversaries.adversary`.
        paper: Where it was published; may be empty.
        on: What attackers change: their training ``data``, or their ``reply``.
        summary: One line.
    """

    kind = "adversary"
    plural = "adversaries"
    name: str
    target: str
    paper: str
    on: Literal["data", "reply"]
    summary: str = ""


@dataclass(frozen=True)
class SectionRecord(Record):
    """A section of the report's page.

    Attributes:
        name: Id of the section on the page, for links: letters, digits, ``-`` and ``_``.
        title: Its heading.
        target: ``module:Class``, a `medfl_report.section.Section` that is made without arguments.
        order: Sections stand in the order of these numbers, then of their names. First is 0, who gains; 100 to 399 have
            the sections of medfl that only some runs have, and those of its methods; 500 and more those that all have.
    """

    kind = "report_section"
    plural = "report_sections"
    name: str
    title: str
    target: str
    order: int = 400

    def __post_init__(self) -> None:
        if not (re.fullmatch(r"[\w-]+", self.name) and isinstance(self.order, int)):
            raise ValueError(f"expected a name without spaces and a whole number as order, got {self!r}")


@dataclass(frozen=True)
class CommandRecord(Record):
    """A command of ``medfl``.

    Attributes:
        name: Name that users type.
        target: ``module:attribute`` of a function, as for `typer.run`, or of a `typer.Typer`.
        summary: Its line in ``medfl --help``.
        section: Heading under which ``medfl --help`` lists it, one of those of `medfl.cli.main.SECTIONS` or a new one.
    """

    kind = "command"
    plural = "commands"
    name: str
    target: str
    summary: str
    section: str = "Bundles and plugins"


@dataclass(frozen=True)
class BackendRecord(Record):
    """A backend, for ``--carrier``: the machines on which a run is carried out.

    Attributes:
        name: Name that users type.
        target: ``module:Class``, a `medfl.workflow.Backend` that is made without arguments.
        summary: One line.
        options: Maps the name of each further option of ``medfl run`` to its description and default.
    """

    kind = "backend"
    plural = "backends"
    name: str
    target: str
    summary: str = ""
    options: Mapping[str, tuple[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunLocation:
    """Folder of the runs that a file or folder of a plugin stands for.

    Attributes:
        folder: Run folder, or a folder of run folders.
        gets_more_runs: Whether further runs will appear in it.
    """

    folder: Path
    gets_more_runs: bool = False


RECORDS: tuple[type[Record], ...] = (
    MethodRecord,
    NetworkRecord,
    PartitionRecord,
    DatasetRecord,
    AdversaryRecord,
    SectionRecord,
    CommandRecord,
    BackendRecord,
)
"""Classes of the records that hooks list."""


METHOD_MEMBERS = (
    *(
        "sends",
        "sends_meta",
        "unlike_networks",
        "unlike_heads",
        "sends_to_peers",
        "needs_public",
        "pools_data",
        "needs",
    ),
    *(
        "active_needs",
        "reduces_to",
        "presets",
        "preset_settings",
        "supports_dp_sgd",
        "supports_robust",
        "gradient_clip",
        "model_dump",
        "setup",
        "plan",
    ),
    *(
        "work",
        "check_tensors",
        "filters",
        "fold",
        "publish",
        "findings",
        "models",
        "task_of",
        "network_config",
        "predictor",
    ),
)
"""What `medfl.contract.Method` names, here without torch."""


def method_problem(name: str, kind: Any) -> PluginError | None:
    """Return the error for a class that is no method; None for a method.

    `supports_dp_sgd` is a promise of privacy that each class has to make or refuse itself.
    """
    if not hasattr(kind, "model_validate"):
        text = f"Expected method '{name}' to be a frozen pydantic model such as Averaging; got {kind!r}."
        return PluginError("wrong_type", text, method=name, found=repr(kind))
    missing = [member for member in METHOD_MEMBERS if not hasattr(kind, member) and member not in kind.model_fields]
    listed = ", ".join(missing)
    if "supports_dp_sgd" not in {*missing, *vars(kind)}:
        listed = ", ".join([*missing, "supports_dp_sgd (a parent's does not count)"])
        missing.append("supports_dp_sgd")
    if not missing:
        return None
    return PluginError(
        "missing_members",
        f"Expected method '{name}' to have all that medfl.contract.Method names; {kind!r} lacks {listed}. "
        "Add it, or inherit from medfl.toolkit.averaging.Averaging, where the rest has defaults.",
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
    def medfl_partitions(self) -> list[PartitionRecord]:  # type: ignore[empty-body]
        """Partitions of this plugin."""

    @_hookspec
    def medfl_datasets(self) -> list[DatasetRecord]:  # type: ignore[empty-body]
        """Data sets of this plugin."""

    @_hookspec
    def medfl_adversaries(self) -> list[AdversaryRecord]:  # type: ignore[empty-body]
        """Poisoning attacks of this plugin, for simulations."""

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

        ``medfl watch`` calls it. Studies and NVFlare's startup kits are found by it.
        """

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
