"""Show the paragraph ``Example: medfl ...`` of a command's docstring at the end of its help."""

from __future__ import annotations

import inspect
import re
from typing import Any

EXAMPLE = re.compile(r"\n\s*\n\s*Example:\s+(?P<line>medfl .*)\Z", re.DOTALL)
"""Pattern of the last paragraph of a docstring with an example. The command may be wrapped between any two words."""


def example_in(text: str) -> str:
    """Return the example command of a docstring on one line, or "" if there is none."""
    match = EXAMPLE.search(inspect.cleandoc(text))
    return " ".join(match["line"].split()) if match else ""


def with_examples(command: Any) -> Any:
    """Move the examples of a command and its subcommands to the end of their help, each on one line, in place.

    Args:
        command: Command or group of click.

    Returns:
        The same command.
    """
    text = inspect.cleandoc(command.help or "")
    if line := example_in(text):
        command.help = EXAMPLE.sub("", text)
        command.epilog = f"\b\nExample:\n  {line}"
    for subcommand in getattr(command, "commands", {}).values():
        with_examples(subcommand)
    return command
