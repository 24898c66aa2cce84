"""Looking through nested settings and configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def texts(value: Any) -> Iterator[str]:
    """All strings of a nested structure of mappings and lists, in order; keys are not among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)
