"""Wording of docstrings and documentation: no openings with a relative word, few constructions that slow a reader."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

OPENINGS = {
    "what",
    "who",
    "whether",
    "of",
    "which",
    "where",
    "as",
    "how",
    "why",
    "when",
    "to",
    "from",
    "in",
    "by",
    "with",
}
OPENINGS |= {"with", "whatever", "whoever"}
"""First words of a docstring that postpone its subject."""

SLOW = re.compile(
    r"\b(of which|of whom|whoever|whatever|stands? (?:in|at|there|on|for itself|beside)|of theirs|of its own kind"
    r"|nobody|as far as|none of|that of|those of|those that|hangs on|goes by|is told|are told)\b"
)
"""Constructions that readers of the outside reader's test had to read twice."""

MAX_OPENINGS = 0.01
"""Largest share of docstrings that open with a relative word."""

MAX_SLOW = 4.0
"""Largest number of slow constructions in 10,000 words."""

PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/tutorials/*.md",
        "docs/methods/*.md",
        "bundles/*/docs/*.md",
        "studies/*.md",
    )
    for path in ROOT.glob(pattern)
)


def docstrings(path: Path) -> Iterator[str]:
    """Yield each docstring of a file, including the docstrings of attributes and constants."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else []:
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value.strip()


@pytest.mark.parametrize("folder", ["medfl", "plugins", "data_prep"])
def test_docstrings_are_plain(folder: str) -> None:
    texts = [text for path in sorted((ROOT / folder).rglob("*.py")) for text in docstrings(path) if text]
    words, slow = sum(len(text.split()) for text in texts), [hit for text in texts for hit in SLOW.findall(text)]
    opened = [text.splitlines()[0] for text in texts if text.split()[0].strip(",.:`'\"").lower() in OPENINGS]
    assert len(opened) <= MAX_OPENINGS * len(texts), opened
    assert 1e4 * len(slow) <= MAX_SLOW * words, slow


def test_pages_are_plain() -> None:
    prose = {path: re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S) for path in PAGES}
    words = sum(len(text.split()) for text in prose.values())
    hits = {str(path.relative_to(ROOT)): SLOW.findall(text) for path, text in prose.items()}
    assert 1e4 * sum(map(len, hits.values())) <= MAX_SLOW * words, {
        page: words for page, words in hits.items() if words
    }


def test_the_patterns_find_what_they_are_for() -> None:
    assert SLOW.findall("nobody knows those that hang; it hangs on that of theirs") == [
        "nobody",
        "those that",
        "hangs on",
        "that of",
    ]
