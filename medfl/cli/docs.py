"""``medfl docs``: write a Markdown page for each method, generated from its record and its class.

The author of a method writes the prose in the class docstring:

* the first sentence and the description;
* the sections in `SECTIONS`, each as ``Title: one paragraph`` or as ``Title:`` above indented paragraphs;
* ``Attributes:`` with one entry for each setting.

A paragraph that is indented by four more spaces is a formula or code. All other contents of a page are read from the
class, so a page cannot contradict the code: types, ranges and defaults of settings, the data that a site sends,
requirements, and tested limit cases.
"""

from __future__ import annotations

import inspect
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from medfl.bundle.option_spelling import option_of_id
from medfl.cli.plugin_options import Disabled, PluginFiles, load
from medfl.contract import Capability, ReducesTo
from medfl.engine.needs import NEED_CONDITIONS, RUN_NEEDS
from medfl.hooks import MethodRecord
from medfl.plugins import Registry
from medfl.privacy.policy import payloads_beside_updates
from medfl.utils.field_descriptions import default_of, flow, type_of, value_of

SECTIONS = ("Update rule", "When to use it", "Limits", "Limit cases", "Source")
"""Titles of the sections with prose in the class docstring of a method. All are optional."""

PAYLOAD_KIND_MEANINGS = {
    "update": "change made by the site's training; clipping, noise and quantisation apply to it",
    "weights": "tensors of the site's model; refused in a run with a privacy setting",
    "statistic": "numbers computed from the site's data; refused in a run with a privacy setting",
    "samples": "images, or data derived from single images; refused in a run with a privacy setting",
}
"""Maps each kind of payload to its meaning, for a reader who decides whether the data may leave a site."""

VISIBILITY_NOTES = {"public": "", "private": " (not sent in a run with a privacy setting)", "needed": ""}
"""Maps each visibility of a metadata field to a note about it, which follows the field's type on the page."""

WEIGHTING_SENTENCES = {
    "size": "by default by the sites' numbers of training images; equal in a run with a privacy setting",
    "uniform": "by default equal for all sites, independent of their numbers of images",
    "method": "computed by the method, as described above",
    "none": "none; the server averages no models",
}
"""Maps each value of `Averaging.weighting` to a phrase for the page of a method."""

ALWAYS_SENT = (
    "In every run, sites also report scores, training losses, times and message sizes. When the run starts, each site "
    "reports whether it has training and validation images, and the site information that the setting `disclose` "
    "names (by default the numbers of images)."
)
"""Sentences about the data that leave a site with every method."""

TESTED_LIMIT_CASES = (
    "The conformance suite runs both methods of each of these cases and compares all models bit by bit:"
)
"""Sentence above the list of limit cases of a method. A limit case is settings with which the method equals another."""


@dataclass
class MethodDocstring:
    """Class docstring of a method, split into its parts. All text is Markdown.

    Attributes:
        description: Blocks before, between and after the sections; the first is the summary sentence.
        sections: Maps the titles in `SECTIONS` that the docstring contains to their blocks.
        attributes: Maps each setting to its description.
    """

    description: list[str] = field(default_factory=list)
    sections: dict[str, list[str]] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Reference to the publication, or an empty string."""
        return "\n\n".join(self.sections.get("Source", []))


def write_pages(registry: Registry, names: Iterable[str], folder: Path, index: bool = False) -> list[Path]:
    """Write the pages of methods to a folder, replacing existing pages.

    Args:
        registry: Registry that contains the methods.
        names: Names of the methods.
        folder: Folder for the pages; created if it does not exist.
        index: Whether to write ``README.md`` too, a table of the methods.

    Returns:
        Paths of the files.

    Raises:
        PluginError: If a method is unknown or cannot be imported. No file is written then.
    """
    kinds = {name: registry.method_class(name) for name in names}
    pages = {f"{name}.md": method_page(registry.methods[name], kind) for name, kind in kinds.items()}
    if index:
        pages["README.md"] = index_page(registry.methods[name] for name in kinds)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def index_page(records: Iterable[MethodRecord]) -> str:
    """Return a Markdown page with a table of methods by family; the family ``reference`` is first."""
    rows = [
        [f"[{record.name}]({record.name}.md)", record.family, record.summary, record.paper]
        for record in sorted(records, key=lambda r: (r.family != "reference", r.family, r.name))
    ]
    head = (
        "# Methods\n\nEach page describes a method: when to use it, its update rule, its parameters and limits, and "
        "the data that a site sends.\n\n"
    )
    return head + _table(["method", "family", "summary", "paper"], rows) + f"\n\n{_generator_note('')}"


def method_page(record: MethodRecord, kind: Any) -> str:
    """Return the Markdown page of one method.

    Args:
        record: The method's record in its plugin.
        kind: The method's class.
    """
    doc = read_docstring(kind)
    parts = [f"# {record.name}", *doc.description]
    parts += _section("When to use it", doc.sections.get("When to use it", []))
    parts += _section("Update rule", doc.sections.get("Update rule", []))
    parts += _section("Parameters", _parameters(kind))
    parts += _section("Limits", doc.sections.get("Limits", []))
    parts += _section("Limit cases", doc.sections.get("Limit cases", []) + _tested_limit_cases(kind))
    parts += _section("Data sent by a site", _data_sent(kind))
    parts += _section("Requirements", [_bullets(_requirements(kind))])
    parts += _section("Reference", [doc.source or record.paper] if doc.source or record.paper else [])
    return "\n\n".join(parts) + f"\n\n{_generator_note(record.name)}"


def read_docstring(kind: type) -> MethodDocstring:
    """Split the docstring of a class into its parts, as Markdown. Names between backquotes become code."""
    doc = MethodDocstring()
    starts = "|".join([*SECTIONS, "Attributes"])
    text = inspect.cleandoc(kind.__doc__ or "")
    # A section starts at the margin and ends before the next paragraph at the margin.
    for chunk in re.split(r"\n\s*\n(?=\S)", text):
        match = re.match(rf"({starts}):(.*)", chunk, re.DOTALL)
        if match is None:
            doc.description += _blocks(chunk)
        elif match[1] == "Attributes":
            doc.attributes = _attributes(match[2])
        else:
            doc.sections[match[1]] = _blocks(match[2])
    return doc


def _blocks(text: str) -> list[str]:
    """Return the paragraphs, lists and code blocks of a section as Markdown blocks.

    Args:
        text: Text of the section; indented as a whole if it starts with a line break.
    """
    text = textwrap.dedent(text.strip("\n")) if text.startswith("\n") else text.strip()
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("    "):
            blocks.append(f"```text\n{textwrap.dedent(block).rstrip()}\n```")
        elif block.startswith(("- ", "* ")):
            blocks.append(_bullets(flow(item[2:]) for item in re.split(r"\n(?=[-*] )", block)))
        else:
            blocks.append(flow(block))
    return blocks


def _section(title: str, blocks: list[str]) -> list[str]:
    """Return a heading and its blocks, or an empty list if there are no blocks."""
    return [f"## {title}", *blocks] if blocks else []


def _attributes(text: str) -> dict[str, str]:
    """Map each name under ``Attributes:`` to its description; deeper indented lines continue a description."""
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    return {name: flow(description) for name, description in entries}


def _data_sent(kind: Any) -> list[str]:
    """Return blocks about the tensors, metadata fields and peer messages that leave a site."""
    parts, sends_to_peers = [], Capability.PEER_MESSAGES in kind.supports
    if kind.sends:
        rows = [[f"`{prefix}...`", sort, PAYLOAD_KIND_MEANINGS[sort]] for prefix, sort in sorted(kind.sends.items())]
        receiver = "the server or, in peer messages, to other sites" if sends_to_peers else "the server"
        parts += [
            f"A site sends these tensors to {receiver}, and no others:",
            _table(["name", "kind", "meaning"], rows),
        ]
    if kind.sends_meta:
        fields = [
            [f"`{key}`", meta_field.words + VISIBILITY_NOTES[meta_field.visibility]]
            for key, meta_field in sorted(kind.sends_meta.items())
        ]
        parts += ["A reply contains these metadata fields, and no others:", _table(["name", "type"], fields)]
    if sends_to_peers:
        parts.append("Sites also send peer messages directly to each other. A run with a privacy setting refuses them.")
    if "pooled_data" in kind.needs:
        parts.append("**The training reads the raw images of all sites together.** It runs in a simulation only.")
    return [*(parts or ["A site sends no tensors and no metadata."]), ALWAYS_SENT]


def _requirements(kind: Any) -> list[str]:
    """Return sentences about the task, networks, public data, privacy settings and weights of a method."""
    supports_privacy = not payloads_beside_updates(kind)
    needs = "; ".join(f"`{need}`, {NEED_CONDITIONS[need]}" for need in sorted(kind.needs - RUN_NEEDS))
    return [
        f"Task: {needs or 'any'}.",
        f"Networks: {_networks(kind)}.",
        "Public data: " + ("required (`--public FOLDER`)." if "public_data" in kind.needs else "not used."),
        "Privacy setting (`--privacy`): "
        + ("supported." if supports_privacy else "not supported; the run is refused."),
        f"Aggregation weights: {_weighting(kind)}",
        *(
            ["Optimisation recipe (`--optimization`): without `schedule`, `warmup-rounds` and `layer-decay`."]
            if "one_learning_rate" in kind.needs
            else []
        ),
    ]


def _weighting(kind: Any) -> str:
    """Return a phrase about the weights of the sites' models with the method's default settings."""
    weighting = getattr(kind.model_construct(), "weighting", None)  # without values for required settings
    if weighting is None:
        return "not declared by the method."
    variable = " The setting `weights` changes them." if "weights" in kind.model_fields else ""
    return f"{WEIGHTING_SENTENCES[weighting]}.{variable}"


def _networks(kind: Any) -> str:
    """Return a phrase about the networks that sites may use."""
    if Capability.DIFFERENT_NETWORKS in kind.supports:
        return "may differ between sites"
    if Capability.DIFFERENT_HEADS in kind.supports:
        return "the same at all sites, except for the head"
    return "the same at all sites"


def _parameters(kind: Any) -> list[str]:
    """Return a table of the settings, the class's own before inherited ones, an example, and the presets."""
    if not kind.model_fields:
        return ["The method has no parameters."]
    own = sorted(kind.model_fields.items(), key=lambda item: item[0] not in kind.__annotations__)
    descriptions = _descriptions(kind)
    rows = [[f"`{name}`", type_of(info), f"`{default_of(info)}`", descriptions.get(name, "")] for name, info in own]
    name, info = next((pair for pair in own if pair[1].default is not None), own[0])
    example = shlex.quote(default_of(info))
    parts = [
        _table(["parameter", "type and range", "default", "description"], rows),
        f"Set a parameter with, for example, `{option_of_id(f'method_args#{name}')} {example}`.",
    ]
    if any(kind.presets.values()):
        parts.append("Presets, chosen with `--method-args.preset NAME`. A parameter that is set overrides the preset:")
        sets = {name: _pairs(values) or "the defaults" for name, values in kind.presets.items()}
        needed = {name: f"; for runs with {_pairs(values)}" for name, values in kind.preset_settings.items()}
        parts.append(_bullets(f"`{name}`: {values}{needed.get(name, '')}" for name, values in sets.items()))
    return parts


def _descriptions(kind: type) -> dict[str, str]:
    """Map each setting to its description in the nearest class that documents it."""
    descriptions: dict[str, str] = {}
    for parent in kind.__mro__:
        if parent.__module__.partition(".")[0] != "pydantic":
            descriptions = read_docstring(parent).attributes | descriptions
    return descriptions


def _pairs(values: Mapping[str, Any]) -> str:
    """Return names and values as a list for Markdown."""
    return ", ".join(f"`{name} = {value_of(value)}`" for name, value in values.items())


def _tested_limit_cases(kind: Any) -> list[str]:
    """Return blocks about the limit cases that the class declares in `reduces_to`."""
    return [TESTED_LIMIT_CASES, _bullets(map(_limit_case, kind.reduces_to))] if kind.reduces_to else []


def _limit_case(limit: ReducesTo) -> str:
    """Return a limit case as a sentence."""
    conditions = [f"with {_pairs(limit.args)}"] if limit.args else []
    conditions += ["on a network without batch-norm layers"] if limit.only_without_norms else []
    condition = " and ".join(conditions) or "always"
    other = f"`{limit.equals}`" + (f" with {_pairs(limit.equals_args)}" if limit.equals_args else "")
    run = f" in a run with {_pairs(limit.equals_settings)}" if limit.equals_settings else ""
    return f"{condition[:1].upper()}{condition[1:]}, this method equals {other}{run}."


def _bullets(lines: Iterable[str]) -> str:
    """Return lines as a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _generator_note(name: str) -> str:
    """Return a Markdown comment with the command that generated the page."""
    return f"<!-- generated by `medfl docs{' ' + name if name else ''}` from the code; do not edit -->\n"


def command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the pages.")],
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD", help="Methods; by default all.", show_default=False)
    ] = None,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Write a documentation page for each method: update rule, parameters, limits, and the data that a site sends.

    Without METHOD the command writes the pages of all methods, and README.md with a table of them.

    Example: medfl docs fedprox fedbn --out pages
    """
    registry = load(plugin, no_plugin)
    for path in write_pages(registry, methods or sorted(registry.methods), out, index=not methods):
        typer.echo(f"wrote {path}")
