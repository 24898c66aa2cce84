"""The plugin files on the page about objectives, robust rules and privacy mechanisms."""

from __future__ import annotations

import re
from pathlib import Path

from medfl.plugins import Registry, load_plugins

PAGE = Path(__file__).parents[2] / "docs" / "write_more.md"


def load_block(name: str, folder: Path) -> Registry:
    """Write a plugin file of the page and load it.

    Args:
        name: Name of the plugin, which is the name of its file.
        folder: Folder for the file.
    """
    (block,) = re.findall(rf"```python\n# {name}.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = folder / f"{name}.py"
    path.write_text(block)
    registry = load_plugins([path])
    assert registry.problems == []
    return registry
