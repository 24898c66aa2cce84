"""Operations on nested mappings, such as settings and configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def iterate_strings(value: Any) -> Iterator[str]:
    """Yield all strings of nested mappings and lists, in order, without the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from iterate_strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from iterate_strings(part)


def merge_nested(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings: values of `above` override values of `below`."""
    both = dict(below)
    for key, value in above.items():
        inner = both.get(key)
        both[key] = merge_nested(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both


def with_nested_value(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return a copy of a nested mapping with a value set at a key; ``a#b`` is the key ``b`` inside ``a``."""
    top, _, rest = name.partition("#")
    inner = values.get(top)
    return {
        **values,
        top: with_nested_value(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value,
    }
