"""``medfl list``: methods, networks, data sets and everything else that can be named in a command or a setting."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.cli.plugin_options import Disabled, PluginFiles, load
from medfl.errors import MedflError, SettingsError
from medfl.hooks import Capability, MethodRecord
from medfl.plugins import Registry
from medfl.utils.text import SHOWN_DIGITS

MIN_WIDTH = 80
"""Smallest width of the output in characters, however narrow the terminal is."""

MAX_WIDTH = 120
"""Largest width of a line of the short list in characters."""


class ListedKind(StrEnum):
    """Kind of entries that can be listed; the value is the word that the user types.

    ``objectives`` are training goals, such as segmentation. ``adversaries`` are poisoning attacks for simulations.
    ``sections`` are the sections of the report. ``weights`` are pretrained weights from which a run can start.
    ``bundles`` are the bundles that come with medfl. The other names say what they list.
    """

    methods = "methods"
    networks = "networks"
    partitions = "partitions"
    objectives = "objectives"
    robust_rules = "robust-rules"
    privacy_mechanisms = "privacy-mechanisms"
    datasets = "datasets"
    adversaries = "adversaries"
    sections = "sections"
    weights = "weights"
    bundles = "bundles"


class TaskKind(StrEnum):
    """Kind of task by which methods can be filtered: an objective, or ``classification`` for ``multiclass``."""

    classification = "classification"
    multiclass = "multiclass"
    binary = "binary"
    multilabel = "multilabel"
    regression = "regression"
    survival = "survival"
    segmentation = "segmentation"


UNMET_NEEDS: dict[TaskKind, frozenset[str]] = {
    TaskKind.classification: frozenset(),
    TaskKind.multiclass: frozenset(),
    TaskKind.binary: frozenset({"class_logits"}),
    TaskKind.multilabel: frozenset({"class_labels", "class_logits"}),
    TaskKind.regression: frozenset({"class_labels", "class_logits", "soft_targets"}),
    TaskKind.survival: frozenset({"class_labels", "class_logits", "soft_targets"}),
    TaskKind.segmentation: frozenset({"class_labels", "class_logits", "linear_head"}),
}
"""Maps each kind of task to the needs of methods (`medfl.contract.Need`) that no such task meets.

A need is a condition of a method on its task, such as class labels. The table does not import the objectives, because
they import torch. ``binary`` is meant with one logit, the
default. A segmentation network has no linear layer as its head."""


def command(
    kind: Annotated[
        ListedKind | None, typer.Argument(help="Kind of entries; all kinds by default.", show_default=False)
    ] = None,
    task: Annotated[
        TaskKind | None,
        typer.Option(help="With methods: only those that can train this kind of task.", show_default=False),
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="With methods: only those with this text in name, summary or paper.",
            show_default=False,
        ),
    ] = "",
    long: Annotated[
        bool,
        typer.Option(
            "--long",
            help="With methods: a table with payloads, support of different networks, family, paper and needs.",
        ),
    ] = False,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """List what medfl and its plugins offer by name: methods, networks, robust rules and more.

    Methods have a line each. --long shows which tensors leave a site, whether sites may have different networks, and
    what a method needs of the task, such as class labels or a network with a linear head.

    Example: medfl list methods --task segmentation --search proximal
    """
    if kind not in (None, ListedKind.methods) and (task or search or long):
        raise SettingsError(
            "incompatible_settings",
            f"--task, --search and --long go with `medfl list methods`, got the kind '{kind}'. Leave them out.",
            settings=["kind", "task", "search", "long"],
        )
    registry = load(plugin, no_plugin)
    console = Console(markup=False, highlight=False, emoji=False)
    console.width = max(console.width, MIN_WIDTH)
    for listed in [kind] if kind else ListedKind:
        if listed is ListedKind.methods:
            methods = select_methods(registry.methods.values(), task, search)
            if long:
                console.print(method_table(methods))
            else:
                width = shutil.get_terminal_size((MAX_WIDTH, 0)).columns
                typer.echo("\n".join(method_lines(methods, min(max(width, MIN_WIDTH), MAX_WIDTH))) + "\n")
        elif listed is ListedKind.bundles:
            console.print(bundle_table())
        elif listed is ListedKind.datasets:
            console.print(dataset_table(registry))
        elif listed is ListedKind.adversaries:
            console.print(adversary_table(registry))
        elif listed is ListedKind.sections:
            console.print(section_table(registry))
        elif listed is ListedKind.weights:
            console.print(weights_table(registry))
        else:
            console.print(plain_table(registry, listed.value))


def select_methods(
    records: Iterable[MethodRecord], task: TaskKind | None = None, search: str = ""
) -> list[MethodRecord]:
    """Return the methods that pass both filters, family by family in the order of their names, references first.

    Args:
        records: Methods to choose from.
        task: Kind of task that a method has to be able to train; None takes all methods. A method that needs more
            than the kind of task decides, such as public data, passes.
        search: Text that a method's name, summary or paper contains, in upper or lower case; empty takes all methods.
    """
    unmet = frozenset[str]() if task is None else UNMET_NEEDS[task]
    text = search.casefold()
    selected = [
        record
        for record in records
        if not unmet & record.needs
        and any(text in field.casefold() for field in (record.name, record.summary, record.paper))
    ]
    return sorted(selected, key=lambda record: (record.family != "reference", record.family, record.name))


def method_lines(records: Sequence[MethodRecord], width: int) -> list[str]:
    """Return the short list of methods: a line for each with its name and summary, under the name of its family.

    Args:
        records: Methods, family by family.
        width: Largest length of a line in characters. A longer summary ends with "...".
    """
    if not records:
        return ["No method passes the filters. `medfl list methods` lists all."]
    name_width = max(len(record.name) for record in records)
    lines = []
    for family, members in groupby(records, key=lambda record: record.family):
        lines += [f"{family[:1].upper()}{family[1:]}"]
        for record in members:
            summary = textwrap.shorten(record.summary, max(width - name_width - 4, 1), placeholder=" ...")
            lines.append(f"  {record.name:<{name_width}}  {summary}")
        lines.append("")
    return [*lines, f"Methods: {len(records)}. More about each: --long. Filters: --task KIND, --search TEXT."]


def method_table(records: Sequence[MethodRecord]) -> Table:
    """Return a table of methods with the tensors that leave a site, family, paper and needs."""
    table = _table(
        "Methods",
        "method",
        "sent by a site:\nnames kind",
        "networks\nmay differ",
        "summary\nfamily; paper; needs of the method",
    )
    for record in records:
        different = "yes" if Capability.DIFFERENT_NETWORKS in record.supports else "no"
        needs = f"needs {', '.join(sorted(record.needs))}" if record.needs else ""
        origin = "; ".join(filter(None, [record.family, record.paper, needs]))
        table.add_row(record.name, describe_payload(record), different, f"{record.summary}\n{origin}")
    return table


def plain_table(registry: Registry, kind: str) -> Table:
    """Return a table of the records of a kind, sorted by name, with plugin and summary.

    Args:
        registry: Loaded plugins.
        kind: Kind in the plural as users type it, for example ``robust-rules``.
    """
    table = _table(kind.capitalize().replace("-", " "), "name", "plugin", "summary")
    for name, record in sorted(getattr(registry, kind.replace("-", "_")).items()):
        table.add_row(name, registry.plugins_listing(record.kind, name)[0], record.summary)
    return table


def dataset_table(registry: Registry) -> Table:
    """Return a table of the data sets in the order of the help, with modality and licence."""
    table = _table("Data sets", "name", "plugin", "summary; modality and licence")
    for record in sorted(registry.datasets.values(), key=lambda record: (record.order, record.name)):
        terms = "; ".join(filter(None, [record.modality, record.licence]))
        table.add_row(
            record.name,
            registry.plugins_listing("dataset", record.name)[0],
            "\n".join(filter(None, [record.summary, terms])),
        )
    return table


def adversary_table(registry: Registry) -> Table:
    """Return a table of the poisoning attacks, attacks on data first, with summary and paper."""
    table = _table("Poisoning attacks, for the setting 'adversaries' of simulations", "name", "changes", "summary")
    for record in sorted(registry.adversaries.values(), key=lambda record: (record.on, record.name)):
        table.add_row(record.name, record.on, "\n".join(filter(None, [record.summary, record.paper])))
    return table


def section_table(registry: Registry) -> Table:
    """Return a table of the report's sections in the order of the page."""
    table = _table("Sections of the report", "id", "plugin", "heading")
    for record in sorted(registry.report_sections.values(), key=lambda record: (record.order, record.name)):
        table.add_row(record.name, registry.plugins_listing("report_section", record.name)[0], record.title)
    return table


def weights_table(registry: Registry) -> Table:
    """Return a table of the pretrained weights: whether their file is on this machine, title, origin, installation."""
    table = _table(
        "Pretrained weights, for --start", "name", "here", "plugin", "title; licence, origin and installation"
    )
    for name, record in sorted(registry.pretrained_weights.items()):
        origin = f"{record.licence}. {record.source} SHA-256 {record.sha256[:SHOWN_DIGITS]}"
        table.add_row(
            name,
            "yes" if has_weights(registry, name) else "no",
            registry.plugins_listing("pretrained_weights", name)[0],
            f"{record.title}\n{origin}\n{record.install}",
        )
    return table


def has_weights(registry: Registry, name: str) -> bool:
    """Return whether this machine has a file of known weights. A run also checks the file's SHA-256."""
    try:
        return Path(registry.pretrained_weights_function(name, "target")()).is_file()
    except MedflError:
        return False


def bundle_table() -> Table:
    """Return a table of the bundles that come with medfl, with task and folder."""
    table = _table("Bundles", "name", "task and folder")
    for name, folder in shipped_bundles().items():
        metadata = json.loads((folder / "configs" / "metadata.json").read_text(encoding="utf-8"))
        table.add_row(name, f"{metadata['task']}\n{folder}")
    return table


def describe_payload(record: MethodRecord) -> str:
    """Return the tensors that a method's sites send, a line for each prefix and its kind, or ``nothing``."""
    return "\n".join(f"{prefix} {kind}" for prefix, kind in sorted(record.sends.items())) or "nothing"


def _table(title: str, *headers: str) -> Table:
    """Return an empty table whose last column is as wide as the terminal allows."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in headers[:-1]:
        table.add_column(header, no_wrap=True, overflow="fold")
    table.add_column(headers[-1], overflow="fold")
    return table
