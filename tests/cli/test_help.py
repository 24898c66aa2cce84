"""Help of every command: it ends with an example that the command's parser accepts."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial

import pytest
import typer.main
from feature_commands import PACKAGES

from medfl.bundle.bundle_folders import find_bundle
from medfl.cli import examples
from medfl.cli.main import SECTIONS, WELCOME, all_commands, app, import_target, real_command
from medfl.cli.run import parse_overrides
from medfl.plugins import load_plugins
from medfl.settings import run_fields

COMMANDS = all_commands()


def context_of(words):
    """Parse the words of a command line and return click's context of the command."""
    context = typer.main.get_command(app).make_context("medfl", list(words))
    while hasattr(context.command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, arguments = context.command.resolve_command(context, rest)
        context = command.make_context(name, arguments, parent=context)
    return context


def with_those_below(name):
    """Return the words of a command and of each of its subcommands."""
    command = real_command(name, partial(import_target, COMMANDS[name].target))
    below = command.list_commands(command.make_context(name, [], resilient_parsing=True)) if is_group(command) else []
    return [(name,), *((name, under) for under in below)]


def is_group(command):
    return hasattr(command, "list_commands")


def check_run(context):
    """Check that the method, settings and ids in the options of a run exist."""
    options = parse_overrides(context.args)
    assert options["method"] in load_plugins().methods
    root = find_bundle(context.params["bundle"])
    files = [root / "configs" / name for name in ("train.json", "federate.json")]
    known = {*run_fields(), *(key for file in files for key in json.loads(file.read_text()))}
    assert {name.partition("#")[0] for name in options} <= known


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_ends_with_an_example_that_its_command_can_read(name, medfl):
    for words in with_those_below(name):
        status, printed, _ = medfl(*words, "--help")
        *_, title, line = printed.rstrip().splitlines()
        assert (status, title.strip()) == (0, "Example:"), f"the docstring of {words} has no example at its end"
        program, *example = shlex.split(line)
        assert program == "medfl"
        assert tuple(example[: len(words)]) == words, "the example is one of this command"
        context = context_of(example)
        if words[-1] in ("run", "submit"):
            check_run(context)


def test_a_docstring_without_an_example_has_none():
    assert examples.example_in("Do it.\n\nWith care.") == ""
    assert examples.example_in("Do it.\n\nExample: medfl do\n    it --now") == "medfl do it --now"


def test_without_a_command_it_says_where_to_begin(medfl):
    status, printed, _ = medfl()
    assert status == 0
    assert printed.startswith(WELCOME)
    joined = WELCOME.replace("\\\n", " ")
    steps = [shlex.split(line)[1:] for line in joined.splitlines() if line.startswith("  medfl ")]
    assert [step[0] for step in steps] == ["demo", "list", "prep", "partition", "run", "run", "report"]
    for step in steps:
        if step[0] in PACKAGES and step[0] not in COMMANDS:  # its package was deleted
            continue
        context = context_of(step)
        if step[0] == "run":
            check_run(context)


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_commands_are_in_named_sections(words, medfl):
    _, printed, _ = medfl(*words)
    after = printed.partition(f"{next(iter(SECTIONS))}:\n")[2]
    titles = [line.removesuffix(":") for line in after.splitlines() if re.fullmatch(r"\S.*:", line)]
    used = {record.section for record in COMMANDS.values()}
    assert titles == [title for title in SECTIONS if title in used][1:]
    assert re.findall(r"^  ([a-z-]+) ", after, re.M) == list(COMMANDS)


def test_a_mistyped_command_is_answered_with_the_nearest_one(medfl):
    status, _, err = medfl("partitoin", "data/own")
    assert status == 2
    assert "no command 'partitoin'. Did you mean 'partition'?" in " ".join(err.split())
    status, _, err = medfl("prep", "medmist", "--source", "downloads")
    assert "no data set 'medmist'. Did you mean 'medmnist'?" in " ".join(err.split())
