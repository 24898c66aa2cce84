"""``medfl docs``: write a page for each method from its record and its class, so that page and code agree.

A method's author writes the class docstring: a description, a paragraph ``When to use it: ...``, ``Attributes:`` for
the settings, and a paragraph ``Source: ...``. The other parts of the page come from the attributes of the class.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from medfl.bundle.option_spelling import option_of_id
from medfl.cli.plugin_options import Disabled, PluginFiles, load
from medfl.contract import Capability, ReducesTo
from medfl.engine.needs import MEANING, OF_RUN
from medfl.hooks import MethodRecord
from medfl.plugins import Registry
from medfl.privacy.policy import payloads_beside_updates
from medfl.utils.field_words import default_of, flow, type_of, value_of

PAYLOAD_DESCRIPTIONS = {
    "update": "what the site's training changed; clipping, noise and quantisation apply to it",
    "weights": "tensors of the site's model as they are; a run with a privacy setting refuses it",
    "statistic": "numbers computed over the site's data; a run with a privacy setting refuses it",
    "samples": "images, or made from images; a run with a privacy setting refuses it",
}
"""Maps each kind of payload to a description for the person who decides whether it may leave a site."""

WEIGHTING_SENTENCES = {
    "size": "By default the server weighs the models of sites by their numbers of training images, or all alike in a "
    "run with a privacy setting.",
    "uniform": "By default the server weighs the models of all sites alike, whatever their sizes.",
    "method": "The method computes the weights of sites itself, as described above.",
    "none": "The server averages no models.",
}
"""Maps each value of `Averaging.weighting` to a sentence for the page of a method."""


SENT_WITH_EVERY_METHOD = (
    "As in every run, sites also report scores, training losses, times and counts of bytes, and at the start whether "
    "they have training and validation images, and what the run's `describe` names: by default their numbers of images."
)
"""Sentence about the data that leave a site with every method."""

LIMIT_CASES_NOTE = "The conformance suite runs both sides of each and compares all models bit by bit."
"""Sentence above the list of limit cases."""


@dataclass
class MethodDocstring:
    """Sections of the docstring of a method's class, in Markdown.

    Attributes:
        text: Paragraphs of the description.
        when: Paragraph "When to use it"; may be empty.
        source: Publication and equation; may be empty.
        attributes: Maps each setting to its description.
    """

    text: list[str] = field(default_factory=list)
    when: str = ""
    source: str = ""
    attributes: dict[str, str] = field(default_factory=dict)


def write_pages(registry: Registry, names: Iterable[str], folder: Path, index: bool = False) -> list[Path]:
    """Write the pages of methods. Existing pages are replaced.

    Args:
        registry: Loaded plugins.
        names: Names of the methods.
        folder: Folder to write in; created if necessary.
        index: Whether to write ``README.md`` too, a list of the pages.

    Returns:
        Paths of the files.

    Raises:
        PluginError: If a method is unknown or can't be imported. Nothing is written then.
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
    """Return a page with a table of methods and links to their pages, family by family, references first."""
    rows = [
        [f"[{record.name}]({record.name}.md)", record.family, record.summary, record.paper]
        for record in sorted(records, key=lambda r: (r.family != "reference", r.family, r.name))
    ]
    head = "# Methods\n\nEach page says what a method does, when to use it and what leaves a site.\n\n"
    return head + _table(["method", "family", "what it does", "paper"], rows) + f"\n\n{_made_by('')}"


def method_page(record: MethodRecord, kind: Any) -> str:
    """Return the page of one method, in Markdown.

    Args:
        record: Record of the method.
        kind: Class of the method.
    """
    doc = read_docstring(kind)
    parts = [f"# {record.name}", *doc.text]
    if doc.source or record.paper:
        parts.append(f"Source: {doc.source or record.paper}")
    if doc.when:
        parts += ["## When to use it", doc.when]
    parts += ["## What leaves a site", *_leaves(kind), "## What it needs", _bullets(_needs(kind))]
    parts += ["## How sites are weighed", _weighting(kind)]
    parts += ["## Settings", *_settings(kind)]
    if kind.reduces_to:
        parts += ["## Limit cases", LIMIT_CASES_NOTE, _bullets(map(_limit, kind.reduces_to))]
    return "\n\n".join(parts) + f"\n\n{_made_by(record.name)}"


def read_docstring(kind: type) -> MethodDocstring:
    """Split the docstring of a class into its sections."""
    doc = MethodDocstring()
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(kind.__doc__ or "")):
        title, _, rest = paragraph.partition(":")
        if title == "Attributes":
            doc.attributes = _attributes(rest)
        elif title == "When to use it":
            doc.when = flow(rest)
        elif title == "Source":
            doc.source = flow(rest)
        else:
            doc.text.append(flow(paragraph))
    return doc


def _attributes(text: str) -> dict[str, str]:
    """Return the descriptions under ``Attributes:`` by name. A description may continue on more indented lines."""
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    return {name: flow(description) for name, description in entries}


def _leaves(kind: Any) -> list[str]:
    """Return the paragraphs about the tensors, metadata and peer messages that leave a site."""
    parts, sends_to_peers = [], Capability.PEER_MESSAGES in kind.supports
    if kind.sends:
        rows = [[f"`{prefix}...`", sort, PAYLOAD_DESCRIPTIONS[sort]] for prefix, sort in sorted(kind.sends.items())]
        receiver = (
            "To the server, or in peer messages to other sites,"
            if Capability.PEER_MESSAGES in kind.supports
            else "To the server"
        )
        parts += [
            f"{receiver} go tensors with these name prefixes, and no others:",
            _table(["name", "kind", "what it is"], rows),
        ]
    if kind.sends_meta:
        notes = {"public": "", "private": " (not in a run with a privacy setting)", "needed": ""}
        facts = [[f"`{key}`", field.words + notes[field.visibility]] for key, field in sorted(kind.sends_meta.items())]
        parts += ["Metadata that go with them, and no others:", _table(["name", "what it is"], facts)]
    if sends_to_peers:
        parts.append("Sites also send messages to each other directly; a run with a privacy setting refuses that.")
    if "pooled_data" in kind.needs:
        parts.append("**The training reads the raw images of all sites together.** It runs in a simulation only.")
    return [*(parts or ["The method sends nothing."]), SENT_WITH_EVERY_METHOD]


def _needs(kind: Any) -> list[str]:
    """Return the method's requirements: task, networks, public data and privacy setting."""
    private = not payloads_beside_updates(kind)
    needs = "; ".join(f"`{need}`, {MEANING[need]}" for need in sorted(kind.needs - OF_RUN))
    return [
        f"Task: {needs or 'any'}.",
        f"Networks: {_networks(kind)}",
        "Public data: " + ("needed (`--public FOLDER`)." if "public_data" in kind.needs else "none."),
        "Privacy setting (`--privacy`): " + ("possible." if private else "refused."),
    ]


def _weighting(kind: Any) -> str:
    """Describe how the server weighs the models of sites with the method's default settings."""
    weighting = getattr(kind.model_construct(), "weighting", None)  # without values for required settings
    if weighting is None:
        return "The method does not say how it weighs the models of sites."
    variable = " With other settings that may differ." if "weights" in kind.model_fields else ""
    return WEIGHTING_SENTENCES[weighting] + variable


def _networks(kind: Any) -> str:
    """Return a phrase about which networks sites may have."""
    if Capability.DIFFERENT_NETWORKS in kind.supports:
        return "sites may have different ones."
    return "the same one at every site" + (
        ", except for the head." if Capability.DIFFERENT_HEADS in kind.supports else "."
    )


def _settings(kind: Any) -> list[str]:
    """Return the paragraphs about the settings: a table with inherited ones last, an example option, and presets."""
    if not kind.model_fields:
        return ["None of its own."]
    own = sorted(kind.model_fields.items(), key=lambda item: item[0] not in kind.__annotations__)
    descriptions = _descriptions(kind)
    rows = [[f"`{name}`", type_of(info), f"`{default_of(info)}`", descriptions.get(name, "")] for name, info in own]
    name, info = next((pair for pair in own if pair[1].default is not None), own[0])
    example = shlex.quote(default_of(info))
    option = option_of_id(f"method_args#{name}")
    parts = [_table(["setting", "type", "default", "meaning"], rows), f"Give one as `{option} {example}`."]
    if any(kind.presets.values()):
        parts.append("Presets, as `--method-args.preset NAME`. A setting that is given as well takes precedence:")
        sets = {name: _assignments(values) or "the defaults" for name, values in kind.presets.items()}
        needed = {name: f"; for runs with {_assignments(values)}" for name, values in kind.preset_settings.items()}
        parts.append(_bullets(f"`{name}`: {values}{needed.get(name, '')}" for name, values in sets.items()))
    return parts


def _descriptions(kind: type) -> dict[str, str]:
    """Return the description of each setting, from the nearest class that documents it."""
    descriptions: dict[str, str] = {}
    for parent in kind.__mro__:
        if parent.__module__.partition(".")[0] != "pydantic":
            descriptions = read_docstring(parent).attributes | descriptions
    return descriptions


def _assignments(values: Mapping[str, Any]) -> str:
    """Return settings and their values as ``a = 1, b = 2`` in Markdown."""
    return ", ".join(f"`{name} = {value_of(value)}`" for name, value in values.items())


def _limit(limit: ReducesTo) -> str:
    """Return a sentence about a limit case."""
    here = [f"with {_assignments(limit.args)}"] if limit.args else []
    here += ["on a network without batch-norm layers"] if limit.only_without_norms else []
    condition = " and ".join(here) or "always"
    same = f"`{limit.equals}`" + (f" with {_assignments(limit.equals_args)}" if limit.equals_args else "")
    if limit.equals_settings:
        same = f"{same} in a run with {_assignments(limit.equals_settings)}"
    return f"{condition[:1].upper()}{condition[1:]}, the method equals {same}."


def _bullets(lines: Iterable[str]) -> str:
    """Return a list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _made_by(name: str) -> str:
    """Return the last line of a page, a comment that names the command that wrote it."""
    return f"<!-- made by `medfl docs{' ' + name if name else ''}` from the code; do not edit -->\n"


def command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write in.")],
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD", help="Names of the methods; all by default.", show_default=False),
    ] = None,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Write a page for each method from its class: description, data that leave a site, needs and settings.

    Without METHOD, write the pages of all methods, and README.md with a list of them.

    Example: medfl docs fedprox fedbn --out pages
    """
    registry = load(plugin, no_plugin)
    for path in write_pages(registry, methods or sorted(registry.methods), out, index=not methods):
        typer.echo(f"wrote {path}")
