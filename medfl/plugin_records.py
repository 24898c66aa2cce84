"""Records that hooks of plugins list: light descriptions whose targets are imported when they are first used."""

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
"""Folder of a run folder in which attacks on the run write their results."""


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
class NetworkAssignmentRecord(Record):
    """A rule that decides before the first round which network each site trains.

    Attributes:
        name: Name that a bundle or a user gives in ``network_assignment``.
        target: ``module:Class``, a `medfl.engine.runs.network_assignment.NetworkAssignment`.
        summary: One line.
    """

    kind = "network_assignment"
    plural = "networks_by_site"
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


class Capability(StrEnum):
    """A capability of a method, for `medfl.contract.Method.supports`."""

    DIFFERENT_NETWORKS = "different_networks"
    """Sites may have different networks."""

    DIFFERENT_HEADS = "different_heads"
    """Sites may have networks with different heads if the names and shapes of their bodies agree."""

    PEER_MESSAGES = "peer_messages"
    """Sites send messages to each other."""

    DP_SGD = "dp_sgd"
    """DP-SGD protects single images: a site's data enter its updates only through the loss of each image, in a single
    training. DP-SGD makes these gradients private and nothing else."""

    ROBUST = "robust"
    """A robust rule can replace the server's aggregation: the server computes one mean of the updates, weighted by the
    sizes of the sites or uniformly, and nothing else."""


PROMISES = frozenset({Capability.DP_SGD, Capability.ROBUST})
"""Capabilities that depend on all code of a class, so that a subclass does not inherit them."""


METHOD_FACTS = ("name", "family", "paper", "summary")
"""Class attributes from which `MethodRecord.of` makes a record."""


@dataclass(frozen=True)
class MethodRecord(Record):
    """A method.

    Attributes:
        name: Name that users type.
        target: ``module:Class``, a frozen pydantic model that fulfils `medfl.contract.Method`.
        family: Heading under which similar methods are listed, for example ``averaging`` or ``personal``.
        paper: Publication, for example ``McMahan et al., AISTATS 2017``; may be empty.
        sends: Tensors that leave a site, the same as `medfl.contract.Method.sends`.
        supports: Capabilities, the same as `medfl.contract.Method.supports`.
        summary: One line.
        needs: Requirements, the same as `medfl.contract.Method.needs`.
    """

    kind = "method"
    plural = "methods"
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
        """Return the record of a method's class, from the attributes of the class.

        Raises:
            PluginError: If the class itself does not declare its name, family, paper and summary.
        """
        missing = [fact for fact in METHOD_FACTS if fact not in vars(method)]
        if missing:
            raise PluginError(
                "missing_members",
                f"Expected {method.__module__}.{method.__qualname__} to declare name, family, paper and summary as "
                f'class attributes, for example `name = "my_method"`; it lacks {", ".join(missing)} '
                "(a parent's do not count).",
                method=method.__qualname__,
                members=missing,
            )
        facts = {fact: vars(method)[fact] for fact in METHOD_FACTS}
        target = f"{method.__module__}:{method.__qualname__}"
        return cls(
            target=target, sends=dict(method.sends), supports=method.supports, needs=frozenset(method.needs), **facts
        )


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
    synthetic: str = ""
    synthetic_options: Mapping[str, Any] = field(default_factory=dict)
    order: int = 100


@dataclass(frozen=True)
class ObjectiveRecord(Record):
    """An objective: a kind of task, such as classification.

    Attributes:
        name: Name that data lists and bundles have; the same as the `name` of the class.
        target: ``module:Class``, a `medfl.objectives.Objective`.
        summary: One line.
    """

    kind = "objective"
    plural = "objectives"
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class RobustRuleRecord(Record):
    """A robust rule, for the setting ``robust.rule``.

    Attributes:
        name: Name that users type.
        target: ``module:Class``, a `medfl.toolkit.robust.rule.RobustRule`.
        summary: One line.
    """

    kind = "robust_rule"
    plural = "robust_rules"
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class PrivacyMechanismRecord(Record):
    """A mechanism of differential privacy, for the setting ``privacy.unit``.

    Attributes:
        name: Privacy unit that users type: a site, or a part of one site's data. It is the `unit` of the class, too.
        target: ``module:Class``, a `medfl.privacy.policy.PrivacyPolicy`.
        summary: One line.
    """

    kind = "privacy_mechanism"
    plural = "privacy_mechanisms"
    name: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class AdversaryRecord(Record):
    """A poisoning attack, for the setting ``poison`` of simulations.

    Attributes:
        name: What users type.
        target: ``module:Class``, a `DataAdversary` or `ReplyAdversary` of `medfl.engine.adversaries.adversary`.
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
class AttackRecord(Record):
    """An attack on finished runs that a study can name. The command ``medfl attack NAME RUN`` carries it out.

    Attributes:
        name: Name that users type.
        target: ``module:Class`` of its options, a dataclass; its fields are the options of the command.
        results: ``module:Class`` of its results, a `medfl.records.record.FileRecord` with the fields ``options`` and
            ``results``. The command writes it to the run's `ATTACKS_FOLDER`. A study's table has a row for each
            ``target``, ``round``, ``attack`` and ``item`` of the results, if they have these fields.
        measures: Maps the fields of a result that the table of a study shows to their headings.
        digits: Maps measures to their number of decimals; the others have three.
        note: Meaning of the measures, in sentences that stand below the table.
        has_intervals: Whether the table shows 95 % intervals over the seeds in place of standard deviations.
    """

    kind = "attack"
    plural = "attacks"
    name: str
    target: str
    results: str
    measures: Mapping[str, str]
    digits: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    has_intervals: bool = False


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
    """A backend, for ``--backend``: the machines on which a run is carried out.

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
)
"""Classes of the records that hooks list."""


def read_method_index(path: Path) -> list[MethodRecord]:
    """Read the records of a package's methods from the file that ``python -m medfl.testing.method_index`` writes."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    for row in rows:
        row |= {"supports": frozenset(map(Capability, row["supports"])), "needs": frozenset(row["needs"])}
    return [MethodRecord(**row) for row in rows]
