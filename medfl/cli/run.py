"""``medfl run``: sugar over ``python -m monai.bundle run`` with the federated overlay and stricter options."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from medfl.bundle.files import find_bundle, shipped
from medfl.cli.repeated_options import repeated
from medfl.cli.run_help import RunCommand
from medfl.errors import STOPPED_RUN, SettingsError, did_you_mean, explain
from medfl.plugins import load_plugins
from medfl.settings import local_fields, run_fields
from medfl.utils.field_words import default_of, flow, model_of, type_of
from medfl.utils.imports import quick_imports
from medfl.utils.memory import keep_freed_memory

HEAD = """\
# Settings of a run

`medfl run` takes each as an option of its name, as `--fraction 0.1`. A bundle's `federate.json` holds those that differ
from the defaults in its object `settings`. `python -m monai.bundle run` takes a setting as `--settings#fraction 0.1`;
what the configuration has an id of its own for (`rounds`, `seed`, `batch_size`, `balance`, `device`) as `--rounds 5`.
Between machines a server sets what is marked *remote*; the rest is each participant's own affair.
"""


def settings_page() -> str:
    """All settings as Markdown that is read well in a terminal, too; ``docs/settings.md`` is this."""
    return "\n".join([HEAD, *_entries(run_fields())])


def _entries(fields: Mapping[str, FieldInfo], indent: str = "") -> Iterator[str]:
    """A list of fields; what they hold in turn is a list within it."""
    local = local_fields(fields)
    for name, info in fields.items():
        default = default_of(info)
        facts = [type_of(info), default if info.is_required() else f"default `{default}`"]
        facts += [] if name in local else ["*remote*"]
        text = f"{'' if indent else '--'}{name}`: {flow(info.description or '')} ({'; '.join(facts)})"
        text = re.sub(r" ([<>]=?) ", r"\0\1\0", text)  # no line begins with a sign, a quotation in Markdown
        lines = textwrap.wrap(f"- `{text}", 120 - len(indent), subsequent_indent="  ", break_on_hyphens=False)
        yield textwrap.indent("\n".join(lines).replace("\0", " "), indent)
        if model := model_of(info):
            yield from _entries(model.model_fields, f"{indent}  ")


def _help_settings(wanted: bool) -> None:
    if wanted:
        typer.echo(settings_page())
        raise typer.Exit()


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(cls=RunCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def command(
    context: typer.Context,
    bundle: Annotated[str, typer.Argument(help="The bundle's folder, or a name of `medfl list bundles`.")],
    dataset_dir: Annotated[
        Path | None, typer.Option(help="Folder with one folder per site; needed unless the run is for other machines.")
    ] = None,
    help_settings: Annotated[
        bool,
        typer.Option(
            "--help-settings", callback=_help_settings, is_eager=True, help="Describe all settings in full, and exit."
        ),
    ] = False,
) -> None:
    """Run a federation over a bundle.

    Options are settings and ids of the bundle's configuration, and # names a part of one, as in MONAI: --optimizer#lr
    0.05. Name a bundle before --help to see its own ids and defaults, as in `medfl run tabular --help`.

    Example: medfl run medmnist_classification --dataset-dir data/hospitals --method fedprox --method_args#mu 0.1
    --rounds 20 --output_dir runs/fedprox
    """
    if bundle.startswith("-"):
        raise SettingsError(
            "missing_argument",
            f"expected a bundle before the options, got '{bundle}'. {did_you_mean('', shipped())}",
            argument="bundle",
            text=bundle,
        )
    overrides = parse_overrides(context.args)
    if "dataset_dir" in overrides:
        if dataset_dir is not None:
            raise SettingsError("repeated_option", repeated("--dataset_dir"), name="dataset_dir")
        dataset_dir = Path(str(overrides.pop("dataset_dir")))
    if dataset_dir is None and overrides.get("backend", "local") == "local":
        raise SettingsError(
            "missing_setting",
            "expected --dataset-dir, the folder with one folder per site (`medfl partition` makes it).",
            setting="dataset_dir",
        )
    run_bundle(bundle, ({} if dataset_dir is None else {"dataset_dir": str(dataset_dir)}) | overrides)


def run_bundle(bundle: str, options: dict[str, Any]) -> None:
    """Run a federation over a bundle.

    Args:
        bundle: The bundle's folder, or a name of `medfl list bundles`.
        options: Id of the bundle's configuration, or setting, to value.

    Raises:
        SettingsError: If it is no bundle.
        DataError: If the data are not of its kind.
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
    """Check the name of the method without torch and MONAI, which take seconds to import.

    Leaves to the run's own checks what can't be known yet: an expression, or a method of a plugin file.

    Args:
        root: The bundle's folder.
        options: As for `run_bundle`.

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
    """``--name value`` and ``--name=value`` pairs; values are Python literals where they look like one.

    Dashes in a name are underscores: no configuration can refer to an id that has one.

    Raises:
        SettingsError: If a word is not part of such a pair, or an option is given twice.
    """
    import ast

    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise SettingsError(
                "invalid_option",
                f"expected options as '--name value', for example --method fedprox; got '{word}'.",
                text=word,
            )
        if not equals and not rest:
            raise SettingsError(
                "missing_option_value",
                f"expected options as '--name value', got '{word}' without a value at the end.",
                name=name,
            )
        top, *parts = name.split("#")
        name = "#".join([top.replace("-", "_"), *parts])
        if name in values:
            raise SettingsError("repeated_option", repeated(f"--{name}"), name=name)
        text = value if equals else rest.pop(0)
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values
