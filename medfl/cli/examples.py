"""Examples at the end of every command's help: the paragraph ``Example: medfl ...`` of a docstring."""

from __future__ import annotations

import inspect
import re
from typing import Any

EXAMPLE = re.compile(r"\n\s*\n\s*Example:\s+(?P<line>medfl .*)\Z", re.DOTALL)
"""The last paragraph of a docstring; a long line may be broken anywhere between two words."""


def example_in(text: str) -> str:
    """The command line of a docstring's last paragraph, on one line; empty if there is none."""
    match = EXAMPLE.search(inspect.cleandoc(text))
    return " ".join(match["line"].split()) if match else ""


def with_examples(command: Any) -> Any:
    """Move the examples of a command, and of all below it, to the end of its help, unbroken so that they can be copied.

    Args:
        command: A command or a group; its help is changed.

    Returns:
        The command.
    """
    text = inspect.cleandoc(command.help or "")
    if line := example_in(text):
        command.help = EXAMPLE.sub("", text)
        command.epilog = f"\b\nExample:\n  {line}"
    for below in getattr(command, "commands", {}).values():
        with_examples(below)
    return command
