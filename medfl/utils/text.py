"""Text for messages: shortened lists, safe display of untrusted text, and validation of site names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from medfl.types import NON_SITE_NAMES, POOLED, SERVER

Say = Callable[[str], None]
"""Type of a function that receives a line of text and shows it to the user."""

MAX_NAME_CHARACTERS = 60
"""Maximum number of characters of a name from a file that tables and pages show."""

MAX_LINE_CHARACTERS = 300
"""Maximum number of characters of an untrusted text, such as a site's reason."""

SHOWN_DIGITS = 12
"""Number of hexadecimal digits of a SHA-256 that tables and reports show."""

MAX_NAMES = 10
"""Maximum number of names, rows or lines that a message lists by default."""

_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
"""Pattern of valid site names."""

_WINDOWS_DEVICES = (
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)),
)
"""Reserved device names of Windows, which no folder may have."""


def one_line(text: object, most: int = MAX_LINE_CHARACTERS) -> str:
    """Convert an untrusted text to one printable line of at most `most` characters, safe for terminals, logs and pages.

    Unprintable characters, such as terminal control codes and line ends, become spaces.
    """
    line = str(text)
    if not line.isprintable():
        line = "".join(letter if letter.isprintable() else " " for letter in line)
    line = " ".join(line.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def visible(text: str) -> str:
    """Escape the unprintable characters of an untrusted text, including line ends."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def visible_lines(text: str) -> str:
    """Escape the unprintable characters of an untrusted text, except line ends."""
    return "\n".join(map(visible, text.split("\n")))


def plain_name(text: str, otherwise: str) -> str:
    """Return a name from a file in a form that is safe to display.

    Args:
        text: Any text.
        otherwise: Replacement if no printable character remains.

    Returns:
        One line of at most `MAX_NAME_CHARACTERS` printable characters.
    """
    return one_line(text, MAX_NAME_CHARACTERS) or otherwise


def inert_name(text: str, otherwise: str) -> str:
    """Return a name that is safe in a bundle's files: without leading '$', '@' and '%', which MONAI would evaluate."""
    return plain_name(text.lstrip("$@% \t\r\n"), otherwise)


def first_names(names: Sequence[object], most: int = MAX_NAMES) -> str:
    """Join names for a message: ``a, b``, or the first ones of many: ``a, b, ...``.

    Args:
        names: Names in display order.
        most: Maximum number of names.
    """
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


def names_and_more(names: Sequence[object], most: int) -> str:
    """Join names for a message: ``a, b``, or the first ones of many with the number of the others: ``a, b and 7 more``.

    Args:
        names: Names in display order.
        most: Maximum number of names.
    """
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def describe_counts(reasons: Mapping[int, str]) -> str:
    """Return the distinct reasons with their counts, the most frequent first: ``2 x damaged; 1 x empty``.

    Args:
        reasons: Mapping from each item's number to its reason.
    """
    texts = list(reasons.values())
    ordered = sorted(set(texts), key=lambda text: (-texts.count(text), text))
    return "; ".join(f"{texts.count(text)} x {text.rstrip('.')}" for text in ordered)


def name_problem(names: Iterable[str]) -> str | None:
    """Return the problem with the names of a federation's sites, or None if they are valid.

    Names are used in paths, messages, certificates and configurations, on any operating system. So the same rule
    applies to partitions, simulated runs and runs on several machines.

    Args:
        names: Names of all sites, each once.

    Returns:
        A sentence with the problem and its remedy.
    """
    known: dict[str, str] = {}
    for name in names:
        lower = name.lower()
        if not _SITE_NAME.fullmatch(name):
            rule = "expected 1 to 63 letters a to z, digits, '_' or '-', a letter or digit first"
            return f"A site can't be called {name!a}: {rule}. Rename it."
        if lower in (SERVER, *NON_SITE_NAMES, POOLED, *_WINDOWS_DEVICES):
            return f"A site can't be called '{name}': that name is reserved. Rename it."
        if known.setdefault(lower, name) != name:
            return f"The sites '{known[lower]}' and '{name}' differ in upper and lower case only. Rename one of them."
    return None
