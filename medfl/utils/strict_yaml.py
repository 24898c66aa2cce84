"""Strict and safe reading of YAML: duplicate keys are refused, and ``1e-3`` is a number (YAML 1.2).

Nesting depth and expansion of aliases are limited, so that a small file can't exhaust the memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from medfl.errors import SettingsError

MAX_DEPTH = 50
"""Maximum nesting depth of lists and objects."""


MAX_VALUES = 100_000
"""Maximum number of values after expansion of aliases."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping. Raise if a key occurs twice."""
        for key, count in Counter(str(key.value) for key, _ in node.value).items():
            if count > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' occurs twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def shallow_events(text: str, loader: type[yaml.SafeLoader], deepest: int) -> Iterator[yaml.Event]:
    """Yield PyYAML's parser events of a text, before any object is built. Raise if the nesting is too deep.

    Args:
        text: YAML text.
        loader: Loader class.
        deepest: Maximum nesting depth of lists and objects.

    Raises:
        RecursionError: If the nesting is deeper. PyYAML itself would take very long to notice.
        yaml.YAMLError: If the text is not valid YAML.
    """
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > deepest:
            raise RecursionError
        yield event


def _count_values(events: Iterable[yaml.Event]) -> int:
    """Return the number of values after expansion of aliases.

    Raises:
        ValueError: If a value contains itself.
    """
    counts, anchors, known = [0], list[str | None](), dict[str | None, int]()
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            counts.append(0)
            anchors.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            count, anchor = counts.pop() + 1, anchors.pop()
            counts[-1] += count
            known |= {} if anchor is None else {anchor: count}
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in anchors:
                raise ValueError(f"the alias '{event.anchor}' contains itself")
            counts[-1] += known.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            counts[-1] += 1
    return counts[0]


def parse_yaml(text: str) -> Any:
    """Parse a YAML text safely; no code in it is executed.

    Raises:
        ValueError: If the text is not valid YAML, has a duplicate key, or exceeds the limits of nesting or values.
    """
    try:
        if _count_values(shallow_events(text, _Loader, MAX_DEPTH)) > MAX_VALUES:
            raise ValueError(f"it expands to more than {MAX_VALUES} values")
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from None


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML file with one mapping safely; no code in it is executed.

    Args:
        path: Path of the file.
        what: Kind of the file, for messages, for example ``study file``.

    Raises:
        SettingsError: If the file is missing, is not valid YAML, has a duplicate key, or does not contain a mapping.
    """
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            "unreadable_file",
            f"expected a {what} at '{path}': {error.strerror}. Check the path.",
            what=what,
            path=path,
            reason=error.strerror,
        ) from None
    except ValueError as error:
        raise SettingsError(
            "invalid_yaml", f"the {what} '{path}' is not valid YAML: {error}", what=what, path=path
        ) from None
    if not isinstance(content, dict):
        sort = "an empty file" if content is None else type(content).__name__
        raise SettingsError(
            "wrong_type",
            f"expected keys and values in the {what} '{path}', got {sort}.",
            what=what,
            path=path,
            expected="keys and values",
            found=sort,
        )

    return content
