"""Every option that the documentation names for a command exists for that command."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main

from medfl.cli.main import COMMANDS, app
from medfl.deploy.submit import OPTIONS
from medfl.settings import run_fields
from medfl.workflow import STOCK_OPTIONS

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "studies" / "README.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("bundles/*/docs/*.md")),
]
TAKES_SETTINGS = {("run",), ("federate", "submit")}
"""Commands whose further options name settings of a run, or ids of a bundle's configuration."""


@cache
def settings() -> frozenset[str]:
    """Names of settings, and ids of the configurations of all bundles."""
    files = [file for name in ("train", "federate") for file in ROOT.glob(f"bundles/*/configs/{name}.json")]
    ids = {key for file in files for key in json.loads(file.read_text())}
    return frozenset({*ids, *run_fields(), *OPTIONS, *STOCK_OPTIONS, "run_name"})


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
                    words = shlex.split(found_command.group(1), comments=True)
                except ValueError:  # an apostrophe in words between commands
                    words = found_command.group(1).split()
                end = next(
                    (place for place, word in enumerate(words) if word in {"|", "&&", ";", ">", "&"}), len(words)
                )
                yield words[:end]


def unknown_options(words: list[str]) -> list[str]:
    """The options of a command line that its command does not have."""
    if not words or words[0] not in COMMANDS:
        return []
    group = typer.main.get_command(app)
    context = group.make_context("medfl", [words[0]], resilient_parsing=True)
    command, path, rest = group.get_command(context, words[0]), (words[0],), words[1:]
    while hasattr(command, "list_commands") and rest and not rest[0].startswith("-"):
        below = command.get_command(context, rest[0])
        if below is None:
            return []
        command, path, rest = below, (*path, rest[0]), rest[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "--debug"}
    typed = [word.split("=")[0] for word in rest if re.match(r"--[A-Za-z]", word)]
    names = {option: option[2:].partition("#")[0].replace("-", "_") for option in typed}
    return [
        option
        for option in typed
        if option not in known and not (path in TAKES_SETTINGS and names[option] in settings())
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_options_exist(page: Path) -> None:
    wrong = {
        " ".join(words): options
        for words in commands_in(page.read_text(encoding="utf-8"))
        if (options := unknown_options(words))
    }
    assert wrong == {}


def test_what_is_looked_for() -> None:
    block = "```sh\nmedfl run b --rounds 3 \\\n  --method_args#mu 1 --ronds 2 | tee\n```"
    text = f"Use `medfl report A --picture x`.\n\n{block}\n"
    commands = list(commands_in(text))
    assert [unknown_options(words) for words in commands] == [["--ronds"], ["--picture"]]
    assert unknown_options(["federate", "submit", "x", "--rounds", "3", "--kit", "k"]) == []
    assert sum(len(list(commands_in(page.read_text()))) for page in PAGES) > 100
