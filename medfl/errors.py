"""Errors that medfl raises deliberately.

Each error has a message for the user, a stable code, and the values in the message as fields. The message says what was
expected, what was found, where, and what to do. Neither the message nor a field contains a patient's name, id or date.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from medfl.version import DISTRIBUTION


class MedflError(Exception):
    """Base class of all errors that a user can fix.

    The command line prints the message without a traceback.

    Args:
        code: Kind of error in snake_case, for example ``unknown_method``. It is stable when the message's wording
            changes; programs and tests compare it.
        message: Text for the user.
        fields: Values in the message: names, paths, expected and found values. They are text, numbers, booleans, None,
            or collections of these.

    Attributes:
        code: Kind of error.
        fields: Values in the message as JSON, by field name. A path becomes text, a tuple becomes a list, and a set
            becomes a sorted list.

    Example:
        >>> error = SettingsError("unknown_method", "unknown method 'fedprx'.", name="fedprx")
        >>> error.code, error.fields["name"], str(error)
        ('unknown_method', 'fedprx', "unknown method 'fedprx'.")
    """

    def __init__(self, code: str, message: str, /, **fields: Any) -> None:
        super().__init__(message)
        self.code = code
        self.fields = {name: _as_plain(value) for name, value in fields.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.code, str(self), self.fields)

    def reworded(self, message: str) -> Self:
        """Return an error of the same class, code and fields with another message.

        Use it to add context: ``raise error.reworded(f"{path}: {error}") from error``.

        Args:
            message: The new message.
        """
        return type(self)(self.code, message, **self.fields)


def _as_plain(value: Any) -> Any:
    """Convert a field's value to JSON."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return [_as_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _restore(kind: type[MedflError], code: str, message: str, fields: dict[str, Any]) -> MedflError:
    """Create an error from its parts, for `pickle`."""
    return kind(code, message, **fields)


class SettingsError(MedflError):
    """A setting, an option, or their combination is invalid."""


class DataError(MedflError):
    """A site's data are missing, unreadable, or contradict the task."""


class PluginError(MedflError):
    """A plugin is unknown, ambiguous, or broken. Its author can fix it; users can disable it by name."""


class StoreError(MedflError):
    """A run folder can't be written or read, or belongs to another run. Everything saved before stays valid."""


class DamagedError(StoreError):
    """A file's content does not match its checksum: it is truncated or was changed on disk."""


class RefusedError(MedflError):
    """A site's reply is refused: it is not finite, above a bound, or undeclared. The site counts as unavailable."""


class ContractError(MedflError):
    """A method violates `medfl.contract`. Its author can fix it; the message says which rule is violated and where."""


MAX_NAMES = 8
"""Maximum number of known names that a message lists if a command can list them instead."""


def did_you_mean(name: str, known: Iterable[str], command: str = "") -> str:
    """Return the end of a message about an unknown name: the nearest known name, and all names or how to list them.

    The nearest name is one that begins with what was typed, or else the most similar one. More than `MAX_NAMES` names
    are left out if `command` lists them.

    Args:
        name: Unknown name that the user typed.
        known: Names that would have been accepted.
        command: Command that lists the known names, such as ``medfl list methods``; empty if there is none.

    Returns:
        For example ``Did you mean 'fedprox'? `medfl list methods` lists all names.`` or ``Known: accuracy, ece.``
    """
    names = sorted(set(known))
    longer = [known_name for known_name in names if name and known_name.startswith(name)]
    close = longer[:1] or difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    if command and len(names) > MAX_NAMES:
        return f"{hint}`{command}` lists all names."
    return f"{hint}Known: {', '.join(names) if names else 'none'}."


def validation_message(problem: Mapping[str, Any]) -> str:
    """Return the message of a validation error, without the words that pydantic puts before a validator's own message.

    Args:
        problem: An entry of pydantic's ``ValidationError.errors()``.
    """
    return str(problem["msg"]).removeprefix("Value error, ")


def check_choice(what: str, choice: str, known: Collection[str]) -> None:
    """Raise if a choice is unknown.

    Args:
        what: Kind of choice, for the message.
        choice: Choice that the user typed.
        known: Accepted choices.

    Raises:
        SettingsError: If the choice is unknown; the message has the most similar choice and all known ones.
    """
    if choice not in known:
        raise SettingsError(
            "unknown_choice", f"unknown {what} '{choice}'. {did_you_mean(choice, known)}", what=what, choice=choice
        )


def pip_install(extra: str) -> str:
    """Return the command that installs one of medfl's extras, for a message."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


STOPPED = "stopped; give the same command again"
"""Message after Ctrl+C in a command other than a run."""

STOPPED_RUN = "stopped; what is finished is saved, the same command continues"
"""Message after Ctrl+C during a run."""

FAULT, MISTAKE, INTERRUPTED = 1, 2, 130
"""Exit statuses of a command: `FAULT` for an unexpected error, `MISTAKE` for an error that the user can fix, and
`INTERRUPTED` for Ctrl+C."""


@dataclass(frozen=True)
class Explanation:
    """User-facing description of an exception.

    Attributes:
        reason: Message without a traceback.
        status: Exit status of the command: `FAULT`, `MISTAKE` or `INTERRUPTED`.
    """

    reason: str
    status: int

    @property
    def message(self) -> str:
        """The reason with its kind as prefix, for a terminal."""
        return {FAULT: "unexpected error: ", MISTAKE: "error: ", INTERRUPTED: ""}[self.status] + self.reason


def explain(error: BaseException, stopped: str = STOPPED) -> Explanation:
    """Convert any exception to a message and an exit status.

    MONAI wraps errors of a configuration's component in errors that start with "Failed to"; the message is the original
    error's.

    Args:
        error: The exception.
        stopped: Message after Ctrl+C.
    """
    if isinstance(error, KeyboardInterrupt):
        return Explanation(stopped, INTERRUPTED)
    if (own := own_error(error)) is not None:
        return Explanation(str(own), MISTAKE)
    component = ""
    while error.__cause__ is not None and str(error).startswith("Failed to "):
        component, error = str(error).partition("\n")[0], error.__cause__
    if component and isinstance(error, ValueError):  # the component refused the value of an argument
        return Explanation(f"{error}. {component}: change the value.", MISTAKE)
    where = f". {component}: check its options" if component else ""
    return Explanation(f"{type(error).__name__}: {error}{where}", FAULT)


def own_error(error: BaseException | None) -> MedflError | None:
    """Return the exception if it is a medfl error, or else the medfl error that caused it; None if there is none."""
    while error is not None and not isinstance(error, MedflError):
        error = error.__cause__
    return error
