"""Records that plugins' hooks return: short descriptions of methods, data sets and other parts of a plugin.

A record's target is a string such as ``my_package.method:MyMethod``, which is imported at its first use. A study is a
file that lists methods, data sets and seeds to compare; a release is a data set as its publisher distributes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

from medfl.errors import PluginError

ATTACKS_FOLDER = "attacks"
"""Subfolder of a run folder for the results of attacks on the run."""


class PluginRecord:
    """Base class of the records that hooks return.

    Attributes:
        kind: Kind of the record in the singular, for messages.
        plural: Kind of the record in the plural. Plugins list such records in the hook ``medfl_<plural>``;
            `medfl.plugins.Registry` stores them in its attribute ``<plural>``.
        name: Name that users type.
        target: ``module:attribute``, imported at its first use.
    """

    kind: ClassVar[str]
    """Kind of the record in the singular, for messages."""
    plural: ClassVar[str]
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str


@dataclass(frozen=True)
class NetworkRecord(PluginRecord):
    """Record of a network.

    Attributes:
        name: Name that users type.
        target: ``module:Class``.
        summary: Description in one line.
    """

    kind = "network"
    """Kind of the record in the singular, for messages."""
    plural = "networks"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class NetworkAssignmentRecord(PluginRecord):
    """Record of a rule that assigns a network to each site before the first round.

    Attributes:
        name: Value of ``network_assignment`` in a bundle or command.
        target: ``module:Class``, a `medfl.engine.runs.network_assignment.NetworkAssignment`.
        summary: Description in one line.
    """

    kind = "network_assignment"
    """Kind of the record in the singular, for messages."""
    plural = "networks_by_site"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class PartitionRecord(PluginRecord):
    """Record of a partition, which splits a pooled data set into sites.

    Attributes:
        name: Name that users type.
        target: ``module:function``.
        summary: Description in one line.
    """

    kind = "partition"
    """Kind of the record in the singular, for messages."""
    plural = "partitions"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    summary: str = ""


class Capability(StrEnum):
    """Capability of a method, for `medfl.contract.Method.supports`."""

    DIFFERENT_NETWORKS = "different_networks"
    """Sites may have different networks."""

    DIFFERENT_HEADS = "different_heads"
    """Sites may have networks with different heads if the names and shapes of their bodies agree."""

    PEER_MESSAGES = "peer_messages"
    """Sites send messages to each other."""

    DP_SGD = "dp_sgd"
    """DP-SGD protects single images.

    A site's data enter its updates only through the loss of each image, in a single training. DP-SGD makes only these
    gradients private.
    """

    ROBUST = "robust"
    """A robust rule can replace the server's aggregation.

    The server computes only one mean of the updates, weighted by the sizes of the sites or uniformly.
    """

    EXACT_ADAPTERS = "exact_adapters"
    """Low-rank adapters can be averaged exactly (setting ``lora.aggregation`` ``exact``).

    Each site trains once from the received tensors, and the server adds one weighted mean of the updates to them.
    """


UNINHERITED_CAPABILITIES = frozenset({Capability.DP_SGD, Capability.ROBUST, Capability.EXACT_ADAPTERS})
"""Capabilities that a subclass does not inherit, because they depend on all code of a class."""


METHOD_DECLARATIONS = ("name", "family", "paper", "summary")
"""Class attributes that a method must declare for `MethodRecord.of`."""


@dataclass(frozen=True)
class MethodRecord(PluginRecord):
    """Record of a method.

    Attributes:
        name: Name that users type.
        target: ``module:Class``, a frozen pydantic model that implements `medfl.contract.Method`.
        family: Heading under which lists group similar methods, for example ``averaging`` or ``personal``.
        paper: Publication, for example ``McMahan et al., AISTATS 2017``; may be empty.
        sends: Prefixes and kinds of the tensors that leave a site, equal to `medfl.contract.Method.sends`.
        supports: Capabilities, equal to `medfl.contract.Method.supports`.
        summary: Description in one line.
        needs: Requirements, equal to `medfl.contract.Method.needs`.
    """

    kind = "method"
    """Kind of the record in the singular, for messages."""
    plural = "methods"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    family: str
    paper: str
    sends: Mapping[str, str] = field(default_factory=lambda: {"model/": "update"})
    supports: frozenset[Capability] = frozenset()
    summary: str = ""
    needs: frozenset[str] = frozenset()

    @classmethod
    def of(cls, method: Any) -> MethodRecord:
        """Create the record of a method from the attributes of its class.

        Raises:
            PluginError: If the class itself does not declare its name, family, paper and summary.
        """
        missing = [fact for fact in METHOD_DECLARATIONS if fact not in vars(method)]
        if missing:
            raise PluginError(
                "missing_members",
                f"Expected {method.__module__}.{method.__qualname__} to declare name, family, paper and summary as "
                f'class attributes, for example `name = "my_method"`; it lacks {", ".join(missing)} '
                "(attributes of a parent do not count).",
                method=method.__qualname__,
                members=missing,
            )
        facts = {fact: vars(method)[fact] for fact in METHOD_DECLARATIONS}
        target = f"{method.__module__}:{method.__qualname__}"
        return cls(
            target=target, sends=dict(method.sends), supports=method.supports, needs=frozenset(method.needs), **facts
        )


@dataclass(frozen=True)
class DatasetRecord(PluginRecord):
    """Record of a data set that ``medfl prep`` and studies can prepare.

    Attributes:
        name: Name that users type.
        target: ``module:Class``, a `medfl.data.ingest.spec.DatasetSpec`.
        modality: Kind of the images; empty if it depends on the user's images.
        licence: Terms of use; empty if they depend on the user's images.
        summary: Description in one line.
        synthetic: ``module:function`` that writes a synthetic release, ``write_release(folder, ..., seed)``; may be
            empty.
        synthetic_options: Options of the data set for the synthetic release, if they differ from the defaults. Paths
            are relative to the release's folder.
        order: Sort key in lists, before the name.
    """

    kind = "dataset"
    """Kind of the record in the singular, for messages."""
    plural = "datasets"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    modality: str = ""
    licence: str = ""
    summary: str = ""
    synthetic: str = ""
    synthetic_options: Mapping[str, Any] = field(default_factory=dict)
    order: int = 100


@dataclass(frozen=True)
class ObjectiveRecord(PluginRecord):
    """Record of an objective: a kind of task, such as classification.

    Attributes:
        name: Name in data lists and bundles; equal to the `name` of the class.
        target: ``module:Class``, a `medfl.objectives.Objective`.
        summary: Description in one line.
    """

    kind = "objective"
    """Kind of the record in the singular, for messages."""
    plural = "objectives"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class RobustRuleRecord(PluginRecord):
    """Record of a robust rule, for the setting ``robust.rule``.

    Attributes:
        name: Name that users type.
        target: ``module:Class``, a `medfl.toolkit.robust.rule.RobustRule`.
        summary: Description in one line.
    """

    kind = "robust_rule"
    """Kind of the record in the singular, for messages."""
    plural = "robust_rules"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class PrivacyMechanismRecord(PluginRecord):
    """Record of a mechanism of differential privacy, for the setting ``privacy.unit``.

    Attributes:
        name: Privacy unit that users type: a site, or a part of one site's data. Equal to the `unit` of the class.
        target: ``module:Class``, a `medfl.privacy.policy.PrivacyPolicy`.
        summary: Description in one line.
    """

    kind = "privacy_mechanism"
    """Kind of the record in the singular, for messages."""
    plural = "privacy_mechanisms"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class AdversaryRecord(PluginRecord):
    """Record of a poisoning attack, for the setting ``adversaries`` of simulations.

    Attributes:
        name: Name that users type.
        target: ``module:Class``, a `DataAdversary` or `ReplyAdversary` of `medfl.engine.adversaries.adversary`.
        paper: Publication; may be empty.
        on: What the attacker changes: its training ``data`` or its ``reply``.
        summary: Description in one line.
    """

    kind = "adversary"
    """Kind of the record in the singular, for messages."""
    plural = "adversaries"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    paper: str
    on: Literal["data", "reply"]
    summary: str = ""


@dataclass(frozen=True)
class AttackRecord(PluginRecord):
    """Record of an attack on finished runs, for studies and the command ``medfl attack NAME RUN``.

    Attributes:
        name: Name that users type.
        target: ``module:Class`` of its options, a dataclass; its fields are the options of the command.
        results: ``module:Class`` of its results, a `medfl.records.record.FileRecord` with the fields ``options`` and
            ``results``. The command writes it to the run's `ATTACKS_FOLDER`. A study's table has one row per
            ``target``, ``round``, ``attack`` and ``item`` of the results, if they have these fields.
        measures: Mapping from the fields of a result that a study's table shows to their headings.
        digits: Mapping from measures to their number of decimals; all others have three.
        note: Explanation of the measures, printed below the table.
        has_intervals: Whether the table shows 95 % confidence intervals over the seeds instead of standard deviations.
    """

    kind = "attack"
    """Kind of the record in the singular, for messages."""
    plural = "attacks"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    results: str
    measures: Mapping[str, str]
    digits: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    has_intervals: bool = False


@dataclass(frozen=True)
class SectionRecord(PluginRecord):
    """Record of a section of the report.

    Attributes:
        name: Id of the section on the page, for links: letters, digits, ``-`` and ``_``.
        title: Heading of the section.
        target: ``module:Class``, a `medfl_report.section.Section` that is created without arguments.
        order: Sort key, before the name. 0 is the first section, on gains; 100 to 399 are sections that only some runs
            have, and sections of methods; 500 and more are sections that all runs have.
    """

    kind = "report_section"
    """Kind of the record in the singular, for messages."""
    plural = "report_sections"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    title: str
    target: str
    order: int = 400

    def __post_init__(self) -> None:
        if not (re.fullmatch(r"[\w-]+", self.name) and isinstance(self.order, int)):
            raise ValueError(f"expected a name without spaces and a whole number as order, got {self!r}")


@dataclass(frozen=True)
class CommandRecord(PluginRecord):
    """Record of a command of ``medfl``.

    Attributes:
        name: Name that users type.
        target: ``module:attribute`` of a function, as for `typer.run`, or of a `typer.Typer`.
        summary: Description in ``medfl --help``.
        section: Heading in ``medfl --help``, from `medfl.cli.main.SECTIONS` or a new one.
    """

    kind = "command"
    """Kind of the record in the singular, for messages."""
    plural = "commands"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    summary: str
    section: str = "Bundles and plugins"


@dataclass(frozen=True)
class BackendRecord(PluginRecord):
    """Record of a backend, for ``--backend``: the machines on which a run is executed.

    Attributes:
        name: Name that users type.
        target: ``module:Class``, a `medfl.workflow.RunLauncher` that is created without arguments.
        summary: Description in one line.
        options: Mapping from each further option of ``medfl run`` to its description and default.
    """

    kind = "backend"
    """Kind of the record in the singular, for messages."""
    plural = "backends"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    target: str
    summary: str = ""
    options: Mapping[str, tuple[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class PretrainedWeightsRecord(PluginRecord):
    """Record of pretrained weights in a file of a pip package, for the setting ``start``.

    The file is known by its SHA-256: the same file at another path is recognised, and its tensors get the network's
    names, too.

    Attributes:
        name: Name that users type, for example ``efficientnet_lite0``.
        title: Name of the weights in reports, with the data that they were trained on.
        licence: Licence of the weights.
        source: Origin of the file in one sentence. It says so if the origin is unconfirmed.
        sha256: SHA-256 of the known file; any other file is refused.
        network: Dotted name of the network's class, whose tensor names `convert` returns.
        mean: Mean of each channel that the weights expect to be subtracted from images in [0, 1].
        std: Standard deviation of each channel that the weights expect images to be divided by.
        install: Command that installs the package with the file.
        target: ``module:function`` without arguments that returns the `pathlib.Path` of the local file. It raises a
            `medfl.errors.MedflError` that names `install` if the file does not exist.
        convert: ``module:function`` that maps the file's tensors (name to tensor) to tensors with the network's names;
            empty if the file has these names. The classifier of other classes is left out.
        read: ``module:function`` that maps the path to the file's tensors, for formats that medfl does not read; empty
            for safetensors and for state dicts that torch has saved.
        network_normalises: Whether the network itself subtracts `mean` and divides by `std`, so that a bundle must
            leave images in [0, 1].
    """

    kind = "pretrained_weights"
    """Kind of the record in the singular, for messages."""
    plural = "pretrained_weights"
    """Kind of the record in the plural, for the names of its hook and of its attribute in the registry."""
    name: str
    title: str
    licence: str
    source: str
    sha256: str
    network: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    install: str
    target: str
    convert: str = ""
    read: str = ""
    network_normalises: bool = False

    def __post_init__(self) -> None:
        if not (re.fullmatch(r"[0-9a-f]{64}", self.sha256) and len(self.mean) == len(self.std) and min(self.std) > 0):
            raise ValueError(
                f"expected 64 hexadecimal digits as sha256, and as many means as positive deviations, got {self!r}"
            )


@dataclass(frozen=True)
class RunLocation:
    """Folder of the runs that belong to a file or folder of a plugin.

    Attributes:
        folder: Run folder, or a folder of run folders.
        gets_more_runs: Whether further runs will be added to the folder.
    """

    folder: Path
    gets_more_runs: bool = False


RECORDS: tuple[type[PluginRecord], ...] = (
    MethodRecord,
    NetworkRecord,
    NetworkAssignmentRecord,
    PartitionRecord,
    DatasetRecord,
    ObjectiveRecord,
    RobustRuleRecord,
    PrivacyMechanismRecord,
    AdversaryRecord,
    AttackRecord,
    SectionRecord,
    CommandRecord,
    BackendRecord,
    PretrainedWeightsRecord,
)
"""Classes of the records that hooks return."""


def read_method_index(path: Path) -> list[MethodRecord]:
    """Read the records of a package's methods from the file that ``python -m medfl.testing.method_index`` writes."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    for row in rows:
        row |= {"supports": frozenset(map(Capability, row["supports"])), "needs": frozenset(row["needs"])}
    return [MethodRecord(**row) for row in rows]
