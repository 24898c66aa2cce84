"""The command ``medfl``: each command is imported when it is used, so that ``medfl --help`` is quick.

To add a command, list it in the hook `medfl_commands` of a plugin.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
import typer.core
import typer.main

from medfl.cli.examples import with_examples
from medfl.cli.repeated_options import refuse_repeated_options
from medfl.errors import FAULT, did_you_mean, explain
from medfl.hooks import CommandRecord
from medfl.utils.imports import quick_imports, refuse_other_distribution
from medfl.utils.text import visible_lines
from medfl.version import __version__

SECTIONS = (
    "First steps",
    "Data",
    "Run",
    "Look at results",
    "Study and compare",
    "Between hospitals",
    "Bundles and plugins",
)
"""Headings of the help, in order; those that only a plugin uses come last."""

CORE_COMMANDS = (
    CommandRecord(
        "list", "medfl.cli.list:command", "List methods, networks, partitions, data sets and bundles.", "First steps"
    ),
    CommandRecord("prep", "medfl.cli.prep:app", "Turn a data set, or your own images, into data lists.", "Data"),
    CommandRecord("partition", "medfl.cli.partition:command", "Split a pooled data set among sites.", "Data"),
    CommandRecord("run", "medfl.cli.run:app", "Run a federation described by a bundle.", "Run"),
    CommandRecord("clean", "medfl.cli.clean:command", "Remove what a finished run no longer needs.", "Run"),
    CommandRecord(
        "check-bundle", "medfl.cli.check_bundle:command", "Check a bundle offline and list the code it would run."
    ),
    CommandRecord("new-method", "medfl.cli.new_method:command", "Write a plugin file for a new method, and its test."),
    CommandRecord(
        "new-dataset", "medfl.cli.new_dataset:command", "Write a plugin file for a new data set, and its test."
    ),
    CommandRecord("docs", "medfl.cli.docs:command", "Write a page for each method."),
)
"""Commands of the core. They win over a plugin's command of the same name."""

FIRST = """\
medfl trains models on medical images that can't leave their hospitals, and compares ways to do so.

See it all on made-up images, in a few minutes; the report is demo/report.html:
  medfl demo

See what there is: methods, data sets, bundles:
  medfl list

Go the same way with your own images, of which a table names file, class and hospital:
  medfl prep folder images --table labels.csv --image-column file --label-column diagnosis \\
      --site-column hospital --size 64 --out data/own
  medfl partition data/own --out data/hospitals --scheme by_site --column site
  medfl run medmnist_classification --dataset-dir data/hospitals --method local --output_dir runs/local
  medfl run medmnist_classification --dataset-dir data/hospitals --method fedavg --output_dir runs/fedavg
  medfl report runs/fedavg runs/local --out runs/report.html

Every command explains itself, with an example: medfl run --help. The guide is README.md, its pages are in docs/.
"""
"""What ``medfl`` says without arguments, above the commands."""


class LazyCommand(typer.core.TyperCommand):
    """Stands for a command in the help; the real one is imported when it is called."""

    def __init__(self, record: CommandRecord, find: Callable[[], Any]) -> None:
        super().__init__(name=record.name, help=record.summary, rich_markup_mode=None)
        self.find = find

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command, so that it is the one that is parsed for and invoked."""
        return real_command(info_name, self.find).make_context(info_name, args, parent=parent, **extra)


class Commands(typer.core.TyperGroup):
    """The group of all commands: those of the core, and those of plugins, which are loaded when they are needed."""

    _has_plugins = False

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.records: dict[str, CommandRecord] = {}
        for record in CORE_COMMANDS:
            self._add(record, partial(import_target, record.target))

    def _add(self, record: CommandRecord, find: Callable[[], Any]) -> None:
        self.records[record.name] = record
        self.add_command(LazyCommand(record, find))

    def _load_plugins(self) -> None:
        """Add the commands of plugins, once."""
        if self._has_plugins:
            return
        self._has_plugins = True
        from medfl.plugins import load_plugins  # after the check for another distribution, and only where needed

        registry = load_plugins()
        for record in registry.commands.values():
            if record.name not in self.records:
                self._add(record, partial(registry.command, record.name))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, or None."""
        if cmd_name not in self.records:
            self._load_plugins()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        self._load_plugins()
        return super().list_commands(ctx)

    def by_section(self) -> dict[str, list[CommandRecord]]:
        """Return all commands by the section of the help that lists them, both in the order of the help."""
        self._load_plugins()
        titles = dict.fromkeys([*SECTIONS, *(record.section for record in self.records.values())])
        listed = {title: [each for each in self.records.values() if each.section == title] for title in titles}
        return {title: records for title, records in listed.items() if records}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands section by section, their help lines in one column."""
        sections = self.by_section()
        width = max(map(len, self.records))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl([(record.name.ljust(width), record.summary) for record in records])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; a name that none has is answered with the nearest one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"There is no command '{args[0]}'. {did_you_mean(args[0], self.records)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Invoke the chosen command; an interruption ends it in one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            explanation = explain(error)
            typer.echo(explanation.message, err=True)
            raise typer.Exit(explanation.status) from None


def all_commands() -> dict[str, CommandRecord]:
    """Return the commands of core and plugins by name, in the order of the help."""
    records = Commands(name="medfl").by_section().values()
    return {record.name: record for listed in records for record in listed}


app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None, invoke_without_command=True)


def import_target(target: str) -> Any:
    """Import ``module:attribute``."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def real_command(name: str | None, find: Callable[[], Any]) -> Any:
    """Import a command.

    Args:
        name: Name that the user typed.
        find: Imports and returns a function or a `typer.Typer`.
    """
    with quick_imports():
        command = find()
    if not isinstance(command, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name, help=_help(command))(command)
        command = single
    return refuse_repeated_options(with_examples(typer.main.get_command(command)))


def _help(function: Callable[..., Any]) -> str:
    """A docstring without its sections for programmers."""
    return re.split(r"\n\n(?:Args|Raises|Returns):\n", inspect.getdoc(function) or "")[0]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"medfl {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
) -> None:
    """Federated learning on medical images. Without a command it says where to begin."""
    if context.invoked_subcommand is None:
        typer.echo(FIRST)
        formatter = context.make_formatter()
        context.command.format_commands(context, formatter)  # type: ignore[attr-defined]  # a group
        typer.echo(formatter.getvalue(), nl=False)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    The status is 0 if all went well, 2 for what the user can mend (a message without a traceback), 130 when
    interrupted, and 1 for anything else.

    Args:
        arguments: What comes after ``medfl``; by default those of the process. ``--debug`` may stand anywhere.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    with _debugging(debug):
        _run_command([argument for argument in words if argument != "--debug"], debug)


@contextlib.contextmanager
def _debugging(debug: bool) -> Iterator[None]:
    """Tell the code that a bundle runs whether tracebacks are wanted, for the length of one command."""
    before = os.environ.get("MEDFL_DEBUG")
    if debug:
        os.environ["MEDFL_DEBUG"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("MEDFL_DEBUG", None)
        else:
            os.environ["MEDFL_DEBUG"] = before


def _run_command(arguments: list[str], debug: bool) -> NoReturn:
    command = typer.main.get_command(app)
    try:
        refuse_other_distribution()
        command.main(arguments, prog_name="medfl")
    except Exception as error:
        explanation = explain(error)
        hint = " (run again with --debug for the traceback)" if explanation.status == FAULT and not debug else ""
        _report(error, explanation.message + hint, debug)
        sys.exit(explanation.status)
    sys.exit(0)


def _report(error: Exception, message: str, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    typer.echo(visible_lines(message), err=True)  # it may repeat names and reasons that came from elsewhere
