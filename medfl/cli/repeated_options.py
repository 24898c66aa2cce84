"""Options of one value that are given twice: refused, as the command line would silently drop the first value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refuse_repeated_options(command: Any) -> Any:
    """Make a command, and all commands below it, refuse an option of one value that is given twice.

    Without this the last value wins silently.

    Args:
        command: A command or a group; its parsers are changed.

    Returns:
        The command.
    """
    make_parser = command.make_parser

    def strict_parser(context: Any) -> Any:
        parser = make_parser(context)
        for option in {*parser._long_opt.values(), *parser._short_opt.values()}:
            if option.action == "store":
                option.process = _once(option, context)
        return parser

    command.make_parser = strict_parser
    for below in getattr(command, "commands", {}).values():
        refuse_repeated_options(below)
    return command


def repeated(option: str) -> str:
    """Return the message about an option that is given twice.

    Args:
        option: The option with its dashes.
    """
    return f"Expected the option '{option}' once, got it twice. Give one value; write a list as one value."


def _once(option: Any, context: Any) -> Callable[[Any, Any], None]:
    """Return an option's `process` that stores a value once and refuses a second one."""
    process = option.process

    def store(value: Any, state: Any) -> None:
        if option.dest in state.opts:
            context.fail(repeated(option.obj.opts[0]))
        process(value, state)

    return store
