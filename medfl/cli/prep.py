"""``medfl prep``: prepare a data set as downloaded, with one subcommand for each data set of the plugins.

The options of a subcommand come from the fields of the data set's specification (`medfl.data.ingest.spec`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
import typer.core
import typer.main

from medfl.cli.examples import example_in, with_examples
from medfl.cli.plugin_options import Disabled, PluginFiles, load
from medfl.cli.repeated_options import refuse_repeated_options
from medfl.errors import did_you_mean
from medfl.plugins import Registry

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from medfl.data.datalists import Datalist
    from medfl.data.ingest.spec import DatasetSpec

Out = Annotated[Path, typer.Option(help="Folder to write.")]
"""Type of the parameter for ``--out``."""

Force = Annotated[bool, typer.Option("--force", help="Replace a data set that exists in the folder.")]
"""Type of the parameter for ``--force``."""

Workers = Annotated[int | None, typer.Option(min=1, help="Number of processes; by default one for each core.")]
"""Type of the parameter for ``--workers``."""

SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out images that can't be read; quarantine.csv lists them.")
]
"""Type of the parameter for ``--skip-unreadable``."""


class DatasetCommands(typer.core.TyperGroup):
    """Group of one subcommand for each data set of the plugins. Using a subcommand imports the data set's code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all data sets in the order of the help."""
        records = self._registry(ctx).datasets.values()
        return [record.name for record in sorted(records, key=lambda record: (record.order, record.name))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a data set, or None if there is no data set of this name."""
        registry = self._registry(ctx)
        if cmd_name not in registry.datasets:
            return None
        return _LazyDatasetCommand(cmd_name, registry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, or fail with the nearest name if there is no such data set."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            ctx.fail(
                f"There is no data set '{args[0]}'. {did_you_mean(args[0], known, 'medfl prep --help')} "
                "For your own images: `medfl prep folder`."
            )
        return super().resolve_command(ctx, args)

    def _registry(self, ctx: Any) -> Registry:
        """Return the loaded plugins. At the first call, load them and store them in the context."""
        if not isinstance(ctx.obj, Registry):
            ctx.obj = load(ctx.params.get("plugin"), ctx.params.get("no_plugin"))
        registry: Registry = ctx.obj
        return registry


class _LazyDatasetCommand(typer.core.TyperCommand):
    """Placeholder of a data set's command in the help. It makes the real command when the command is called."""

    def __init__(self, name: str, registry: Registry) -> None:
        super().__init__(name=name, help=registry.datasets[name].summary, rich_markup_mode=None)
        self.registry = registry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the real command."""
        assert self.name is not None  # the constructor sets it
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(self.name)(make_command(self.name, self.registry))
        real = refuse_repeated_options(with_examples(typer.main.get_command(single)))
        return real.make_context(info_name, args, parent=parent, **extra)


app = typer.Typer(cls=DatasetCommands, add_completion=False, no_args_is_help=True, rich_markup_mode=None)
"""The command ``medfl prep`` with one subcommand for each data set."""


@app.callback()
def prep(plugin: PluginFiles = None, no_plugin: Disabled = None) -> None:
    """Turn a data set as downloaded, or your own images, into one array of images and a data list.

    Example: medfl prep folder images --table labels.csv --image-column file --target class:diagnosis --site-column
    hospital --size 64 --out data/own
    """


def make_command(name: str, registry: Registry) -> Callable[..., None]:
    """Return the function of a data set's command, with a parameter for each field of its specification."""
    from medfl.api import prepare

    kind: type[DatasetSpec] = registry.dataset(name)

    def command(out: Path, force: bool, **values: Any) -> None:
        frame: dict[str, Any] = {"force": force, "workers": values.pop("workers", None)}
        if kind.unreadable == "option skip_unreadable":
            frame["require_complete"] = not values.pop("skip_unreadable")
        elif kind.unreadable == "option require_complete":
            frame["require_complete"] = values.pop("require_complete")
        prepared = prepare(name, out=out, plugins=registry, say=print_to_stderr, **frame, **values)
        print_counts(out, prepared.lists["pooled"], f"{kind.item}s")

    text = inspect.getdoc(kind) or ""
    command.__doc__ = text if example_in(text) else f"{text}\n\nExample: {make_example(name, kind)}"
    command.__signature__ = inspect.Signature(_parameters(kind))  # type: ignore[attr-defined]
    command.__annotations__ = {
        key: parameter.annotation for key, parameter in inspect.signature(command).parameters.items()
    }
    return command


def make_example(name: str, kind: type[DatasetSpec]) -> str:
    """Return an example command for a data set whose docstring has none, with the required options only."""
    from medfl.data.ingest.options import Positional

    words = []
    for option, field in kind.model_fields.items():
        if field.is_required():
            flag = not any(isinstance(mark, Positional) for mark in field.metadata)
            words += [f"--{option.replace('_', '-')}"] if flag else []
            words.append(f"downloads/{name}" if option == "source" else option.upper())
    return " ".join(["medfl prep", name, *words, f"--out data/{name}"])


def print_to_stderr(line: str) -> None:
    """Print a line of progress, or a warning, to stderr."""
    typer.echo(line, err=True)


def print_counts(out: Path, datalist: Datalist, items: str = "images") -> None:
    """Print the number of images of each split and of each class, or group of targets, that were written.

    Args:
        out: Folder of the data set.
        datalist: Data list that was written.
        items: Name of the cases, in the plural.
    """
    counts = datalist.counts()
    sizes = ", ".join(f"{len(records)} {split}" for split, records in datalist.splits.items())
    of_classes = f" of {datalist.num_classes} classes" if datalist.goal.has_class_labels else ""
    typer.echo(f"{out}: {sizes} {items}{of_classes}")
    if datalist.goal.name in ("multilabel", "regression"):  # the groups of a partition are no counts of findings
        return
    for label, class_name in datalist.labels.items():
        typer.echo(f"  {label} {class_name}: {sum(split[label] for split in counts.values())}")


def _parameters(kind: type[DatasetSpec]) -> list[inspect.Parameter]:
    """Return the parameters of a command: the required ones, then the folder to write, then the optional ones."""
    fields = kind.model_fields
    named = [_parameter(name, field) for name, field in fields.items()]
    required = [parameter for parameter in named if parameter.default is inspect.Parameter.empty]
    frame: list[tuple[str, Any, Any]] = []
    if kind.unreadable == "option require_complete":
        text = f"Stop if any {kind.item} is missing or can't be read."
        frame.append(("require_complete", Annotated[bool, typer.Option("--require-complete", help=text)], False))
    if kind.unreadable == "option skip_unreadable":
        frame.append(("skip_unreadable", SkipUnreadable, False))
    if kind.parallel:
        frame.append(("workers", Workers, None))
    frame.append(("force", Force, False))
    optional = [parameter for parameter in named if parameter.default is not inspect.Parameter.empty]
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, annotation=Out)
    last = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, annotation, default in frame
    ]
    return [*required, out, *optional, *last]


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return the parameter of a command for a field of a specification."""
    from medfl.data.ingest.options import Positional

    kind, text = _command_type(field), field.description
    default = inspect.Parameter.empty if field.is_required() else _command_value(field, kind)
    option: Any
    if any(isinstance(mark, Positional) for mark in field.metadata):
        option = typer.Argument(help=text)
    elif kind is bool:
        option = typer.Option(f"--{name.replace('_', '-')}", help=text)
    else:
        least = next((mark.ge for mark in field.metadata if hasattr(mark, "ge")), None)
        option = typer.Option(help=text, min=least)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, option], default=default)


def _command_type(field: FieldInfo) -> Any:
    """Return the type of a field on the command line, where sizes and lists with commas are text."""
    from medfl.data.ingest.options import CommaSeparated

    optional = [part for part in get_args(field.annotation) if part is not type(None)]
    kind = optional[0] if len(optional) == 1 else field.annotation
    if get_origin(kind) is not tuple:
        return field.annotation
    if get_args(kind)[0] is str and not any(isinstance(mark, CommaSeparated) for mark in field.metadata):
        return list[str] | None
    return str


def _command_value(field: FieldInfo, kind: Any) -> Any:
    """Return the default of a field as the command line shows it."""
    from medfl.data.ingest.options import CommaSeparated, size_text

    value = field.get_default()
    if not isinstance(value, tuple):
        return value
    if kind is str and any(isinstance(mark, CommaSeparated) for mark in field.metadata):
        return ",".join(part if isinstance(part, str) else f"{part:g}" for part in value)
    if kind is str:
        return str(size_text(value))
    return list(value) or None
