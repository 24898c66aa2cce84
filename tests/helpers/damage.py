"""Changing a bundle in place."""

from __future__ import annotations

import json


def edit(bundle, file, change):
    """Change a configuration; `change` gets its content."""
    path = bundle / "configs" / file
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def put(bundle, file, text):
    """Write a file of the bundle."""
    path = bundle / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
