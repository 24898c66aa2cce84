"""The command ``medfl``: a table of commands, each imported when it is used, so that ``medfl --help`` is quick.

To add a command, write a module in `medfl.cli` with a function or a `typer.Typer` and add a line to `SECTIONS`.
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
from typing import Annotated, Any, NoReturn

import typer
import typer.core
import typer.main

import medfl
from medfl.cli.examples import with_examples
from medfl.cli.repeated_options import refuse_repeated_options
from medfl.errors import FAULT, did_you_mean, explain
from medfl.utils.imports import quick_imports, refuse_other_distribution
from medfl.utils.text import visible_lines

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "First steps": {
        "demo": ("medfl.cli.demo:command", "Compare methods on made-up data in a few minutes."),
        "list": ("medfl.cli.list:command", "List methods, networks, partitions, data sets and bundles."),
    },
    "Data": {
        "prep": ("medfl.cli.prep:app", "Turn a data set, or your own images, into data lists."),
        "partition": ("medfl.cli.partition:command", "Split a pooled data set among sites."),
    },
    "Run": {
        "run": ("medfl.cli.run:app", "Run a federation described by a bundle."),
        "status": ("medfl.cli.status:command", "Say how far runs are."),
        "watch": ("medfl.cli.watch:command", "Watch runs as they happen, in the terminal or on a page."),
        "clean": ("medfl.cli.clean:command", "Remove what a finished run no longer needs."),
    },
    "Look at results": {
        "report": ("medfl.cli.report:command", "Write a page about runs: who gains, curves, costs, settings."),
        "card": ("medfl.cli.card:command", "Write a model card into every bundle of a run."),
        "verify": ("medfl.cli.verify:command", "Check bundles against their cards: files and numbers."),
        "attack": ("medfl.cli.attack:app", "Measure what a finished run gives away."),
    },
    "Study and compare": {
        "compare": ("medfl.cli.compare:command", "Compare runs over seeds, as Markdown and CSV."),
        "study": ("medfl.cli.study:command", "Run the methods and seeds of a study file."),
        "tune": ("medfl.cli.tune:command", "Search a study's settings, on validation images alone."),
    },
    "Between hospitals": {
        "federate": ("medfl.cli.federate:app", "Run federations between machines."),
        "site": ("medfl.cli.site:app", "Check a site's own file, and see what left the site."),
    },
    "Bundles and plugins": {
        "adopt": ("medfl.cli.adopt:command", "Make a federation's bundle of a stock MONAI bundle."),
        "check-bundle": ("medfl.cli.check_bundle:command", "Check a bundle offline and list the code it would run."),
        "new-method": ("medfl.cli.new_method:command", "Write a plugin file for a new method, and its test."),
        "new-dataset": ("medfl.cli.new_dataset:command", "Write a plugin file for a new data set, and its test."),
        "docs": ("medfl.cli.docs:command", "Write a page for each method."),
    },
}
"""Sections of the help, each with its commands: name to target and help line.

A target is a function, as for `typer.run`, or a `typer.Typer` of any shape.
"""

COMMANDS = {name: command for commands in SECTIONS.values() for name, command in commands.items()}
"""All commands, by name."""

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

    def __init__(self, name: str, target: str, summary: str) -> None:
        super().__init__(name=name, help=summary, rich_markup_mode=None)
        self.target = target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command, so that it is the one that is parsed for and invoked."""
        return real_command(info_name, self.target).make_context(info_name, args, parent=parent, **extra)


class Commands(typer.core.TyperGroup):
    """The group of all commands of `COMMANDS`, shown by `SECTIONS`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (target, summary) in COMMANDS.items():
            self.add_command(LazyCommand(name, target, summary))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands section by section, their help lines in one column."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(max(map(len, COMMANDS))), summary) for name, (_, summary) in commands.items()]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; a name that none has is answered with the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"There is no command '{args[0]}'. {did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Invoke the chosen command; an interruption ends it in one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            explanation = explain(error)
            typer.echo(explanation.message, err=True)
            raise typer.Exit(explanation.status) from None


app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None, invoke_without_command=True)


def real_command(name: str | None, target: str) -> Any:
    """Import a command.

    Args:
        name: What the user typed.
        target: ``module:attribute`` of a function or a `typer.Typer`.
    """
    module, _, attribute = target.partition(":")
    with quick_imports():
        command = getattr(importlib.import_module(module), attribute)
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
        typer.echo(f"medfl {medfl.__version__}")
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
