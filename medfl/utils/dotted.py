"""Looking through nested settings and configurations, and putting them together."""

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


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings as one: what `above` says wins, and what it leaves out stands as in `below`."""
    both = dict(below)
    for key, value in above.items():
        inner = both.get(key)
        both[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both


def placed(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A nested mapping with another value at a place; ``a#b`` is the part ``b`` of ``a``."""
    top, _, rest = name.partition("#")
    inner = values.get(top)
    return {**values, top: placed(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}
