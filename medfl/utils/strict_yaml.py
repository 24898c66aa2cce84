"""YAML without its traps: a key that stands twice is refused, and ``1e-3`` is a number (YAML 1.2).

Nor may it nest without end, or stand by its aliases for more than a memory holds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from medfl.errors import SettingsError

DEEPEST = 50
"""Lists and objects within each other, at most."""


MOST = 100_000
"""Values that a file stands for, at most: by aliases of aliases a few lines stand for any number."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, stricter."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        for key, count in Counter(str(key.value) for key, _ in node.value).items():
            if count > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def shallow_events(text: str, loader: type[yaml.SafeLoader], deepest: int) -> Iterator[yaml.Event]:
    """What PyYAML's parser sees in a text, before anything of it is built.

    Args:
        text: YAML.
        loader: Reads it.
        deepest: Lists and objects within each other, at most.

    Raises:
        RecursionError: If it nests deeper; PyYAML itself takes ever longer to get there.
        yaml.YAMLError: If it is no YAML.
    """
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > deepest:
            raise RecursionError
        yield event


def _count(events: Iterable[yaml.Event]) -> int:
    """How many values a text stands for once its aliases are what they repeat.

    Raises:
        ValueError: If a part repeats itself.
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
                raise ValueError(f"the part '{event.anchor}' repeats itself")
            counts[-1] += known.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            counts[-1] += 1
    return counts[0]


def parse_yaml(text: str) -> Any:
    """The content of a YAML text. Nothing in it is executed.

    Raises:
        ValueError: If it is no valid YAML, names a key twice, nests too deep, or stands for too many values.
    """
    try:
        if _count(shallow_events(text, _Loader, DEEPEST)) > MOST:
            raise ValueError(f"it stands for more than {MOST} values")
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from None


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML file that holds one mapping. Nothing in it is executed.

    Args:
        path: The file.
        what: What it is, for messages, for example ``study file``.

    Raises:
        SettingsError: If the file is missing, is no YAML, names a key twice, or holds something else.
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
            "invalid_yaml", f"the {what} '{path}' is no valid YAML: {error}", what=what, path=path
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
