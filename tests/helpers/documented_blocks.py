"""Blocks of code in the documentation, so that tests use exactly the text that users copy."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def block_after(page: str, title: str) -> str:
    """Return the first block of code of a page whose first line is a comment with a title."""
    text = (DOCS / page).read_text(encoding="utf-8")
    block = re.search(rf"^( *)```\w*\n *# {re.escape(title)}\b.*?\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    assert block is not None, f"docs/{page} has no block '# {title}'"
    indent = len(block.group(1))
    return "".join(line[indent:] if line.strip() else line for line in block.group(2).splitlines(keepends=True))
