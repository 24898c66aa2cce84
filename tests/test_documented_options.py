"""Every option that the documentation names for a command exists for that command."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from medfl.bundle.option_spelling import id_of_option
from medfl.cli.main import all_commands, import_target, real_command
from medfl.errors import SettingsError
from medfl.settings import run_fields

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "studies" / "README.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("bundles/*/docs/*.md")),
]
OF_WORKFLOW = {"kit", "reply_timeout", "gpus", "gpu_memory_gib", "tracking", "run_name", "logging_file"}
"""Options of `medfl.workflow.FederatedWorkflow`, whose import takes seconds, and of a submission."""

TAKES_SETTINGS = {("run",), ("federate", "submit")}
"""Commands whose further options name settings of a run, or ids of a bundle's configuration."""


@cache
def settings() -> frozenset[str]:
    """Names of settings, and ids of the configurations of all bundles."""
    files = [file for name in ("train", "federate") for file in ROOT.glob(f"bundles/*/configs/{name}.json")]
    ids = {key for file in files for key in json.loads(file.read_text())}
    return frozenset({*ids, *run_fields(), *OF_WORKFLOW})


def commands_in(text: str) -> Iterator[list[str]]:
    """The words of each ``medfl`` command in blocks and spans of code, up to where a shell ends it."""
    pieces = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", text, re.M | re.S)
    prose = re.sub(r"^ *```[^\n]*\n.*?^ *```", "", text, flags=re.M | re.S)
    pieces += re.findall(r"^(?: {4}|\t)(.+)$", prose, re.M) + re.findall(r"`([^`]+)`", prose)
    for piece in pieces:
        lines = piece.replace("\\\n", " ").splitlines() if "\n" in piece.strip() else [" ".join(piece.split())]
        for line in lines:
            found_command = re.search(r"(?:^|[;&|(]\s*|\$ ?|\bpython -m )medfl (.*)", line.strip())
            if found_command:
                try:
                    words = shlex.split(re.sub(r"\s#.*", "", found_command.group(1)))
                except ValueError:  # an apostrophe in words between commands
                    words = found_command.group(1).split()
                end = next(
                    (place for place, word in enumerate(words) if word in {"|", "&&", ";", ">", "&"}), len(words)
                )
                yield words[:end]


COMMANDS = all_commands()


@cache
def options_below(path: tuple[str, ...]) -> tuple[Any, frozenset[str]]:
    """The command of these words and its options; None if there is no such command."""
    if len(path) == 1:
        command = real_command(path[0], partial(import_target, COMMANDS[path[0]].target))
    else:
        above, _ = options_below(path[:-1])
        command = above.get_command(above.make_context(path[-2], [], resilient_parsing=True), path[-1])
        if command is None:  # a word for any, or the data set of a plugin
            return None, frozenset()
        command = command.make_context(path[-1], [], resilient_parsing=True).command  # the real one, with its options
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return command, frozenset(known | {"--help", "--debug"})


def unknown_options(words: list[str]) -> list[str]:
    """The options of a command line that its command does not have."""
    if not words or words[0] not in COMMANDS:
        return []
    path, rest = (words[0],), words[1:]
    while hasattr(options_below(path)[0], "list_commands"):
        rest = rest[2:] if rest[:1] == ["--plugin"] else rest
        if not rest or rest[0].startswith("-"):
            break
        path, rest = (*path, rest[0]), rest[1:]
    command, known = options_below(path)
    if command is None:
        return []
    typed = [word.split("=")[0] for word in rest if re.match(r"--[A-Za-z]", word)]
    return [option for option in typed if option not in known and not (path in TAKES_SETTINGS and sets_a_value(option))]


def sets_a_value(option: str) -> bool:
    """Return True if an option names a setting or an id, in the spelling of ``medfl run``."""
    try:
        return id_of_option(option).partition("#")[0] in settings()
    except SettingsError:
        return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_options_exist(page: Path) -> None:
    wrong = {
        " ".join(words): options
        for words in commands_in(page.read_text(encoding="utf-8"))
        if (options := unknown_options(words))
    }
    assert wrong == {}


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "methods"], ids=lambda page: page.name)
def test_options_are_spelled_as_medfl_takes_them_where_monai_is_not_named(page: Path) -> None:
    wrong = []
    for paragraph in re.split(
        r"\n\s*\n", re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    ):
        if not re.search("monai|FL4Health", paragraph, re.I):
            wrong += re.findall(r"`(--[a-z]+(?:[_#:][\w#:]+)+)", paragraph)
    assert wrong == []


def test_what_is_looked_for() -> None:
    block = "```sh\nmedfl run b --rounds 3 \\\n  --method-args.mu 1 --ronds 2 --lr_decay 1 | tee\n```"
    text = f"Use `medfl partition A --picture x`.\n\n{block}\n"
    commands = list(commands_in(text))
    assert [unknown_options(words) for words in commands] == [["--ronds", "--lr_decay"], ["--picture"]]
    assert unknown_options(["federate", "submit", "x", "--rounds", "3", "--kit", "k"]) == []
    assert sum(len(list(commands_in(page.read_text()))) for page in PAGES) > 100
