"""Every error that medfl raises on purpose.

A message says what was expected, what came, where, and what to do; it never names a patient.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from medfl import DISTRIBUTION


class MedflError(Exception):
    """Base of all errors that a user can do something about; the command line prints them without a traceback."""


class SettingsError(MedflError):
    """A setting, an option, or a combination of them is not possible."""


class DataError(MedflError):
    """A site's data are missing, unreadable, or contradict the task."""


class PluginError(MedflError):
    """A plugin is unknown, ambiguous, or broken. Its author can mend it; others can switch it off by name."""


class StoreError(MedflError):
    """A run folder can't be written or read, or belongs to another run. What was saved before stays valid."""


class DamagedError(StoreError):
    """A file's content does not match its own checksum: cut short, or changed on disk."""


class RefusedError(MedflError):
    """A site refuses to send a reply (not finite, over a bound, undeclared). The site counts as missing."""


class ContractError(MedflError):
    """A method broke the contract. Its author can mend it; the message says which promise and where."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence for an unknown name: the nearest known one, and all of them, each once.

    The nearest name is one that begins with what was typed, or else the most similar one.

    Args:
        name: What was typed.
        known: What would have been accepted.

    Returns:
        For example ``Did you mean 'fedprox'? Known: fedavg, fedprox.``
    """
    names = sorted(set(known))
    longer = [known_name for known_name in names if name and known_name.startswith(name)]
    close = longer[:1] or difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(names) if names else 'none'}."


def check_choice(what: str, choice: str, known: Collection[str]) -> None:
    """Refuse a choice that there is not.

    Args:
        what: What is chosen, for the message.
        choice: What was typed.
        known: What would have been accepted.

    Raises:
        SettingsError: With the nearest known one, and all of them.
    """
    if choice not in known:
        raise SettingsError(f"unknown {what} '{choice}'. {did_you_mean(choice, known)}")


def pip_install(extra: str) -> str:
    """Return the command that installs one of medfl's extras, for a message.

    Args:
        extra: Name of the extra, as in ``pyproject.toml``.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"
