"""Entry point of the command line ``medfl``: find the command, run it, and print its errors.

The module of a command is imported only when the command is used, so that ``medfl --help`` is quick. A plugin adds
commands with the hook `medfl_commands`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
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
"""Titles of the sections of the help, in order. Sections that only a plugin uses come after these."""

CORE_COMMANDS = (
    CommandRecord(
        "list", "medfl.cli.list:command", "List methods, networks, partitions, data sets and bundles.", "First steps"
    ),
    CommandRecord("prep", "medfl.cli.prep:app", "Turn a data set, or your own images, into data lists.", "Data"),
    CommandRecord(
        "harmonise", "medfl.cli.harmonise:command", "Match the grey values of images to a shared template.", "Data"
    ),
    CommandRecord("partition", "medfl.cli.partition:command", "Split a pooled data set into sites.", "Data"),
    CommandRecord("run", "medfl.cli.run:app", "Run a federation described by a bundle.", "Run"),
    CommandRecord("clean", "medfl.cli.clean:command", "Free disk space that finished runs no longer need.", "Run"),
    CommandRecord(
        "check-bundle", "medfl.cli.check_bundle:command", "Check a bundle offline and list the code it would run."
    ),
    CommandRecord("new-method", "medfl.cli.new_method:command", "Write a plugin file for a new method, and its test."),
    CommandRecord(
        "new-dataset", "medfl.cli.new_dataset:command", "Write a plugin file for a new data set, and its test."
    ),
    CommandRecord("docs", "medfl.cli.docs:command", "Write a page for each method."),
)
"""Commands of the core. A command of the core takes precedence over a plugin's command of the same name."""

WELCOME = """\
medfl trains models on medical images that can't leave their hospitals, and compares federated learning methods.

Run a demonstration on synthetic images, in a few minutes; the report is demo/report.html:
  medfl demo

List methods, data sets, bundles and more:
  medfl list

Run the same steps on your own images, with a table that gives the file, class and hospital of each image:
  medfl prep folder images --table labels.csv --image-column file --target class:diagnosis \\
      --site-column hospital --size 224 --out data/own
  medfl partition data/own --out data/hospitals --scheme by_site --column site
  medfl run own_images --dataset-dir data/hospitals --method local --output-dir runs/local
  medfl run own_images --dataset-dir data/hospitals --method fedavg --output-dir runs/fedavg
  medfl report runs/fedavg runs/local --out runs/report.html

Each command has a help page with an example: medfl run --help. The guide is docs/guide.md.
"""
"""Text that ``medfl`` prints without arguments, above the list of commands."""


class LazyCommand(typer.core.TyperCommand):
    """Placeholder of a command in the help. It imports the real command when the command is called.

    Args:
        record: Record of the command.
        find: Function that imports the command and returns it, a function or a `typer.Typer`.
    """

    def __init__(self, record: CommandRecord, find: Callable[[], Any]) -> None:
        super().__init__(name=record.name, help=record.summary, rich_markup_mode=None)
        self.find = find

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the real command, so that click parses and invokes the real command."""
        return real_command(info_name, self.find).make_context(info_name, args, parent=parent, **extra)


class Commands(typer.core.TyperGroup):
    """All commands of the core and of plugins. Plugins are loaded only when their commands are needed.

    Attributes:
        records: Maps the name of each command that is loaded to its record.
    """

    _has_plugins = False

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.records: dict[str, CommandRecord] = {}
        for record in CORE_COMMANDS:
            self._add(record, partial(import_target, record.target))

    def _add(self, record: CommandRecord, find: Callable[[], Any]) -> None:
        """Add the placeholder of a command; `find` imports the real one."""
        self.records[record.name] = record
        self.add_command(LazyCommand(record, find))

    def _load_plugins(self) -> None:
        """Load the plugins and add their commands, at the first call only."""
        if self._has_plugins:
            return
        self._has_plugins = True
        from medfl.plugins import load_plugins  # after the check for another distribution

        registry = load_plugins()
        for record in registry.commands.values():
            if record.name not in self.records:
                self._add(record, partial(registry.command, record.name))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, or None if there is none. Load the plugins if the core has no such command."""
        if cmd_name not in self.records:
            self._load_plugins()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, including commands of plugins."""
        self._load_plugins()
        return super().list_commands(ctx)

    def by_section(self) -> dict[str, list[CommandRecord]]:
        """Return the records of all commands by the section of the help, in the order of the help."""
        self._load_plugins()
        titles = dict.fromkeys([*SECTIONS, *(record.section for record in self.records.values())])
        listed = {title: [each for each in self.records.values() if each.section == title] for title in titles}
        return {title: records for title, records in listed.items() if records}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands for the help, section by section, with the summaries in one column."""
        sections = self.by_section()
        width = max(map(len, self.records))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl([(record.name.ljust(width), record.summary) for record in records])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, or fail with the nearest name if there is no such command."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"There is no command '{args[0]}'. {did_you_mean(args[0], self.records, 'medfl --help')}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Invoke the command. After Ctrl+C print one line and exit."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            explanation = explain(error)
            typer.echo(explanation.message, err=True)
            raise typer.Exit(explanation.status) from None


def all_commands() -> dict[str, CommandRecord]:
    """Return the records of the commands of core and plugins by name, in the order of the help."""
    records = Commands(name="medfl").by_section().values()
    return {record.name: record for listed in records for record in listed}


app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None, invoke_without_command=True)
"""The command line ``medfl`` with all of its commands."""


def import_target(target: str) -> Any:
    """Import and return the object that ``module:attribute`` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def real_command(name: str | None, find: Callable[[], Any]) -> Any:
    """Import a command and return it as click's command, with its example and with repeated options refused.

    Args:
        name: Name that the user typed.
        find: Function that imports the command and returns it, a function or a `typer.Typer`.
    """
    with quick_imports():
        command = find()
    if not isinstance(command, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name, help=_help_text(command))(command)
        command = single
    return refuse_repeated_options(with_examples(typer.main.get_command(command)))


def _help_text(function: Callable[..., Any]) -> str:
    """Return a function's docstring without the sections for programmers."""
    return re.split(r"\n\n(?:Args|Raises|Returns):\n", inspect.getdoc(function) or "")[0]


def _print_version(is_requested: bool) -> None:
    """Print the version and exit, if the option is given."""
    if is_requested:
        typer.echo(f"medfl {__version__}")
        raise typer.Exit()


@app.callback()
def root_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
) -> None:
    """Train models by federated learning on medical images. Without a command, print the first steps."""
    if context.invoked_subcommand is None:
        typer.echo(WELCOME)
        formatter = context.make_formatter()
        context.command.format_commands(context, formatter)  # type: ignore[attr-defined]  # a group
        typer.echo(formatter.getvalue(), nl=False)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    The exit status is 0 after success, 2 after an error that the user can correct (a message without a traceback),
    130 after Ctrl+C, and 1 after any other error.

    Args:
        arguments: Words after ``medfl``; by default ``sys.argv``. ``--debug`` may be at any position.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    with _debug_environment(debug):
        _run_command([argument for argument in words if argument != "--debug"], debug)


@contextlib.contextmanager
def _debug_environment(debug: bool) -> Iterator[None]:
    """Set the environment variable ``MEDFL_DEBUG`` during one command if debugging is on.

    Code that a bundle runs reads the variable to decide whether to print tracebacks.
    """
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
    """Run a command, print its error if it raises one, and exit."""
    command = typer.main.get_command(app)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path or a class may have letters that it can't write
    try:
        refuse_other_distribution()
        command.main(arguments, prog_name="medfl")
    except Exception as error:
        explanation = explain(error)
        hint = " (run again with --debug for the traceback)" if explanation.status == FAULT and not debug else ""
        _print_error(error, explanation.message + hint, debug)
        sys.exit(explanation.status)
    sys.exit(0)


def _print_error(error: Exception, message: str, debug: bool) -> None:
    """Print an error to stderr, with the traceback if debugging is on."""
    if debug:
        traceback.print_exception(error)
    typer.echo(visible_lines(message), err=True)  # the message may contain names from files
