"""``medfl list``: what is installed."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from medfl.bundle.files import shipped
from medfl.cli.plugin_options import Disabled, PluginFiles, load
from medfl.hooks import Capability, MethodRecord
from medfl.plugins import Registry

MIN_WIDTH = 80
"""Columns below which a table is not squeezed."""


class ListedKind(StrEnum):
    """What can be listed."""

    methods = "methods"
    networks = "networks"
    partitions = "partitions"
    objectives = "objectives"
    robust_rules = "robust-rules"
    privacy_mechanisms = "privacy-mechanisms"
    datasets = "datasets"
    adversaries = "adversaries"
    sections = "sections"
    bundles = "bundles"


def command(
    kind: Annotated[ListedKind | None, typer.Argument(help="Only these.", show_default=False)] = None,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """List what plugins and medfl itself offer by name, for example methods, networks and robust rules.

    For a method the table says what leaves a site, whether sites may have unlike networks, and what the method needs of
    a task.

    Example: medfl list methods
    """
    registry = load(plugin, no_plugin)
    console = Console(markup=False, highlight=False, emoji=False)
    console.width = max(console.width, MIN_WIDTH)
    for wanted in [kind] if kind else ListedKind:
        if wanted is ListedKind.methods:
            console.print(method_table(registry))
        elif wanted is ListedKind.bundles:
            console.print(bundle_table())
        elif wanted is ListedKind.datasets:
            console.print(dataset_table(registry))
        elif wanted is ListedKind.adversaries:
            console.print(adversary_table(registry))
        elif wanted is ListedKind.sections:
            console.print(section_table(registry))
        else:
            console.print(plain_table(registry, wanted.value))


def method_table(registry: Registry) -> Table:
    """Methods, family by family in the order of their names, the references first."""
    table = _table("Methods", "name", "sends", "unlike\nnetworks", "what it does; family, paper and needs")
    for record in sorted(registry.methods.values(), key=_by_family):
        unlike = "yes" if Capability.DIFFERENT_NETWORKS in record.supports else "no"
        needs = f"needs {', '.join(sorted(record.needs))}" if record.needs else ""
        origin = "; ".join(filter(None, [record.family, record.paper, needs]))
        table.add_row(record.name, sent(record), unlike, f"{record.summary}\n{origin}")
    return table


def plain_table(registry: Registry, kind: str) -> Table:
    """Return the records of a kind by name, each with its plugin and its summary.

    Args:
        registry: The plugins.
        kind: Kind in the plural as users type it, for example ``robust-rules``.
    """
    table = _table(kind.capitalize().replace("-", " "), "name", "plugin", "what it is")
    for name, record in sorted(getattr(registry, kind.replace("-", "_")).items()):
        table.add_row(name, registry.givers(record.kind, name)[0], record.summary)
    return table


def dataset_table(registry: Registry) -> Table:
    """Data sets, in the order of their help, each with its modality and its terms of use."""
    table = _table("Data sets", "name", "plugin", "what it is; modality and licence")
    for record in sorted(registry.datasets.values(), key=lambda record: (record.order, record.name)):
        terms = "; ".join(filter(None, [record.modality, record.licence]))
        table.add_row(
            record.name, registry.givers("dataset", record.name)[0], "\n".join(filter(None, [record.summary, terms]))
        )
    return table


def adversary_table(registry: Registry) -> Table:
    """Poisoning attacks, those on data first, each with its settings and paper."""
    table = _table("Poisoning attacks, for the setting 'poison' of simulations", "name", "changes", "what attackers do")
    for record in sorted(registry.adversaries.values(), key=lambda record: (record.on, record.name)):
        table.add_row(record.name, record.on, "\n".join(filter(None, [record.summary, record.paper])))
    return table


def section_table(registry: Registry) -> Table:
    """Sections of the report, in the order of the page."""
    table = _table("Sections of the report", "id", "plugin", "heading")
    for record in sorted(registry.report_sections.values(), key=lambda record: (record.order, record.name)):
        table.add_row(record.name, registry.givers("report_section", record.name)[0], record.title)
    return table


def bundle_table() -> Table:
    """The bundles that come with medfl, by name, each with its task and its folder."""
    table = _table("Bundles", "name", "what it learns, and where it lies")
    for name, folder in shipped().items():
        metadata = json.loads((folder / "configs" / "metadata.json").read_text(encoding="utf-8"))
        table.add_row(name, f"{metadata['task']}\n{folder}")
    return table


def sent(record: MethodRecord) -> str:
    """What leaves a site, for reading: ``nothing``, or each prefix with its kind."""
    return "\n".join(f"{prefix} {kind}" for prefix, kind in sorted(record.sends.items())) or "nothing"


def _by_family(record: MethodRecord) -> tuple[bool, str, str]:
    return record.family != "reference", record.family, record.name


def _table(title: str, *headers: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in headers[:-1]:
        table.add_column(header, no_wrap=True, overflow="fold")
    table.add_column(headers[-1], overflow="fold")
    return table
