"""Text for messages: who gets it, lists of names that stay short, and names that will do for a site."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from medfl.types import NO_SITES, POOLED, SERVER

Say = Callable[[str], None]
"""Gets a line of text for the user."""

LONGEST = 60
"""Letters of a name from a file that tables and pages show."""

LONGEST_TEXT = 300
"""Letters of a text that came from elsewhere, such as a site's reason."""

MAX_NAMES = 10
"""How many names, rows or lines a message lists."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")

_DEVICES = ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)))
"""Names that Windows gives to no folder."""


def one_line(text: object, most: int = LONGEST_TEXT) -> str:
    """A text from elsewhere as a terminal, a log or a page can show it: one line of at most `most` printable letters.

    What is not printable, such as the codes by which a terminal is steered and the end of a line, becomes a space.
    """
    line = str(text)
    if not line.isprintable():
        line = "".join(letter if letter.isprintable() else " " for letter in line)
    line = " ".join(line.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def visible(text: str) -> str:
    """A text from elsewhere in one line; letters that a terminal or a page would not show are written out."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def visible_lines(text: str) -> str:
    """The same for a text of several lines, whose ends stay."""
    return "\n".join(map(visible, text.split("\n")))


def plain_name(text: str, otherwise: str) -> str:
    """A name from a file as a table or a page can show it.

    Args:
        text: Any text.
        otherwise: What stands in its place if nothing of it can be shown.

    Returns:
        One line of at most `LONGEST` printable characters.
    """
    return one_line(text, LONGEST) or otherwise


def inert_name(text: str, otherwise: str) -> str:
    """The same for a bundle's files: it begins with nothing that MONAI would evaluate, none of '$', '@' and '%'."""
    return plain_name(text.lstrip("$@% \t\r\n"), otherwise)


def first_names(names: Sequence[object], most: int = MAX_NAMES) -> str:
    """Names for a message: ``a, b``; of many the first ones: ``a, b, ...``.

    Args:
        names: In the order in which they are listed.
        most: How many are listed.
    """
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


def names_and_more(names: Sequence[object], most: int) -> str:
    """Names for a message: ``a, b``; of many the first ones and the number of the others: ``a, b and 7 more``.

    Args:
        names: In the order in which they are listed.
        most: How many are listed.
    """
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def describe_counts(reasons: Mapping[int, str]) -> str:
    """The different reasons, the most frequent first, each with its count: ``2 x damaged; 1 x empty``.

    Args:
        reasons: Number of an item to its reason.
    """
    texts = list(reasons.values())
    ordered = sorted(set(texts), key=lambda text: (-texts.count(text), text))
    return "; ".join(f"{texts.count(text)} x {text.rstrip('.')}" for text in ordered)


def name_problem(names: Iterable[str]) -> str | None:
    """What is wrong with the names of a federation's sites; None if they will do.

    A name stands in paths, messages, certificates and configurations, on whatever system each site has: one rule for
    partitions, runs, and federations between machines.

    Args:
        names: Of all sites, each once.

    Returns:
        A sentence that says what to do.
    """
    known: dict[str, str] = {}
    for name in names:
        lower = name.lower()
        if not _NAME.fullmatch(name):
            rule = "expected 1 to 63 letters a to z, digits, '_' or '-', a letter or digit first"
            return f"A site can't be called {name!a}: {rule}. Rename it."
        if lower in (SERVER, *NO_SITES, POOLED, *_DEVICES):
            return f"A site can't be called '{name}': that name has a meaning of its own. Rename it."
        if known.setdefault(lower, name) != name:
            return f"The sites '{known[lower]}' and '{name}' differ in upper and lower case only. Rename one of them."
    return None
