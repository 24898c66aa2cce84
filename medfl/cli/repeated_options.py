"""Refuse an option of one value that is given twice. Click would silently drop the first value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refuse_repeated_options(command: Any) -> Any:
    """Make a command and its subcommands fail if an option of one value is given twice, in place.

    Args:
        command: Command or group of click.

    Returns:
        The same command.
    """
    make_parser = command.make_parser

    def strict_parser(context: Any) -> Any:
        parser = make_parser(context)
        for option in {*parser._long_opt.values(), *parser._short_opt.values()}:
            if option.action == "store":
                option.process = _store_once(option, context)
        return parser

    command.make_parser = strict_parser
    for subcommand in getattr(command, "commands", {}).values():
        refuse_repeated_options(subcommand)
    return command


def repeated_option_message(option: str) -> str:
    """Return the error message for an option that is given twice.

    Args:
        option: Option with its dashes.
    """
    return f"Expected the option '{option}' once, got it twice. Give one value; write a list as one value."


def _store_once(option: Any, context: Any) -> Callable[[Any, Any], None]:
    """Return a replacement for an option's method ``process`` that fails at the second value."""
    process = option.process

    def store(value: Any, state: Any) -> None:
        if option.dest in state.opts:
            context.fail(repeated_option_message(option.obj.opts[0]))
        process(value, state)

    return store
