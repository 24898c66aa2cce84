"""``medfl run``: run a federation over a bundle.

It does the same as ``python -m monai.bundle run`` with the bundle's ``federate.json``, and refuses unknown options.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from medfl.bundle.bundle_folders import LIST_BUNDLES, find_bundle, shipped_bundles
from medfl.bundle.option_spelling import id_of_option, option_of_id
from medfl.cli.repeated_options import repeated_option_message
from medfl.cli.run_help import RunCommand
from medfl.errors import STOPPED_RUN, SettingsError, did_you_mean, explain
from medfl.plugins import load_plugins
from medfl.settings import local_fields, run_fields
from medfl.utils.field_descriptions import default_of, flow, model_of, type_of
from medfl.utils.imports import quick_imports
from medfl.utils.memory import keep_freed_memory

SETTINGS_PAGE_HEAD = """\
# Settings of a run

On this page you look up every setting of a run: its meaning, its range and its default.

`medfl run` takes each setting as an option, for example `--fraction 0.1` or `--lr-decay 0.99`. A dot separates a
setting and its part, as in `--privacy.epsilon 8`. In files, settings have underscores: the object `settings` in a
bundle's `federate.json` contains the settings that differ from their defaults.

`python -m monai.bundle run` takes a setting as `--settings#fraction 0.1`, and a setting for which the configuration has
its own id (`rounds`, `seed`, `batch_size`, `balance`, `device`) as `--rounds 5`.

In a run between machines, the server decides the settings marked *remote*; each participant decides the others for
itself.
"""
"""Text above the list of settings, on the page ``docs/settings.md`` and in ``medfl run --help-settings``."""


def settings_page() -> str:
    """Return the description of all settings in Markdown: the content of ``docs/settings.md``."""
    return "\n".join([SETTINGS_PAGE_HEAD, *_entries(run_fields())])


def _entries(fields: Mapping[str, FieldInfo], indent: str = "") -> Iterator[str]:
    """Yield the lines of a nested Markdown list of settings; the parts of a setting are a list within it."""
    local = local_fields(fields)
    for name, info in fields.items():
        default = default_of(info)
        facts = [type_of(info), default if info.is_required() else f"default `{default}`"]
        facts += [] if name in local else ["*remote*"]
        shown = name.replace("_", "-") if indent else option_of_id(name)
        text = f"{shown}`: {flow(info.description or '')} ({'; '.join(facts)})"
        text = re.sub(r" ([<>]=?) ", r"\0\1\0", text)  # no line begins with a sign, a quotation in Markdown
        lines = textwrap.wrap(f"- `{text}", 120 - len(indent), subsequent_indent="  ", break_on_hyphens=False)
        yield textwrap.indent("\n".join(lines).replace("\0", " "), indent)
        if model := model_of(info):
            yield from _entries(model.model_fields, f"{indent}    ")


def _print_settings(is_requested: bool) -> None:
    """Print the description of all settings and exit, if the option is given."""
    if is_requested:
        typer.echo(settings_page())
        raise typer.Exit()


app = typer.Typer(add_completion=False, rich_markup_mode=None)
"""The command ``medfl run``."""


@app.command(cls=RunCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def command(
    context: typer.Context,
    bundle: Annotated[str, typer.Argument(help="Folder of the bundle, or a name from `medfl list bundles`.")],
    dataset_dir: Annotated[
        Path | None, typer.Option(help="Folder with one folder for each site. Required for a run on this machine.")
    ] = None,
    help_settings: Annotated[
        bool,
        typer.Option(
            "--help-settings", callback=_print_settings, is_eager=True, help="Describe all settings in full, and exit."
        ),
    ] = False,
) -> None:
    """Run a federation over a bundle.

    Options are settings and ids of the bundle's configuration; a dot separates an id and its part, as in --optimizer.lr
    0.05. Give a bundle before --help to see its own ids and defaults: `medfl run tabular --help`.

    Example: medfl run medmnist_classification --dataset-dir data/hospitals --method fedprox --method-args.mu 0.1
    --rounds 20 --output-dir runs/fedprox
    """
    if bundle.startswith("-"):
        raise SettingsError(
            "missing_argument",
            f"Expected a bundle before the options, got '{bundle}'. "
            f"{did_you_mean('', shipped_bundles(), LIST_BUNDLES)}",
            argument="bundle",
            text=bundle,
        )
    root = find_bundle(bundle)
    overrides = parse_overrides(context.args)
    if dataset_dir is None and overrides.get("backend", "local") == "local":
        raise SettingsError(
            "missing_setting",
            "Expected --dataset-dir, the folder with one folder for each site (`medfl partition` writes it).",
            setting="dataset_dir",
        )
    run_bundle(str(root), ({} if dataset_dir is None else {"dataset_dir": str(dataset_dir)}) | overrides)


def run_bundle(bundle: str, options: dict[str, Any]) -> None:
    """Run a federation over a bundle.

    Args:
        bundle: Folder of the bundle, or a name from ``medfl list bundles``.
        options: Maps each setting, or id of the bundle's configuration, to its value.

    Raises:
        SettingsError: If there is no such bundle, or an option is not valid.
        DataError: If the bundle needs data of another kind.
        typer.Exit: If the user interrupts the run.
    """
    root = find_bundle(bundle)
    check_method(root, options)
    keep_freed_memory()  # before torch allocates
    with quick_imports():
        from medfl import workflow
    try:
        workflow.run_bundle(root, options)
    except KeyboardInterrupt as error:
        explanation = explain(error, STOPPED_RUN)
        typer.echo(explanation.message, err=True)
        raise typer.Exit(explanation.status) from None


def check_method(root: Path, options: Mapping[str, Any]) -> None:
    """Raise if the run names a method that no plugin has, without importing torch and MONAI, which takes seconds.

    It checks nothing if the method is an expression, or if the run loads plugin files; the run checks these itself.

    Args:
        root: Folder of the bundle.
        options: Maps each setting, or id of the bundle's configuration, to its value.

    Raises:
        PluginError: If no plugin, or more than one, has a method of that name.
    """
    try:
        bundle = json.loads((root / "configs" / "federate.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    values = {**bundle, **options} if isinstance(bundle, dict) else dict(options)
    method, disabled = values.get("method"), values.get("disabled_plugins")
    if values.get("plugins") != [] or not isinstance(disabled, list):
        return
    if all(isinstance(name, str) and name[:1] not in "$@%" for name in (method, *disabled)):
        load_plugins(disabled=disabled).check_name("method", str(method))


def parse_overrides(words: list[str]) -> dict[str, Any]:
    """Parse the options of a run, pairs ``--name value`` or ``--name=value``.

    Args:
        words: Words of the command line.

    Returns:
        Maps each setting, or id of a bundle's configuration, to its value. A value that is a Python literal, such as a
        number or a list, is evaluated; any other value is text.

    Raises:
        SettingsError: If a word is not part of such a pair, or an option has another spelling or is given twice.
    """
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("--"):
            raise SettingsError(
                "invalid_option",
                f"Expected options as '--name value', for example --method fedprox; got '{word}'.",
                text=word,
            )
        if not equals and not rest:
            raise SettingsError(
                "missing_option_value",
                f"Expected options as '--name value', got '{word}' without a value at the end.",
                name=option.removeprefix("--"),
            )
        name = id_of_option(option)
        if name in values:
            raise SettingsError("repeated_option", repeated_option_message(option), name=name)
        text = value if equals else rest.pop(0)
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values
