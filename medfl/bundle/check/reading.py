"""Reading a configuration that nobody has reviewed yet: JSON or YAML, as data and nothing else."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_DEPTH = 50
"""Levels of nesting above which a configuration is refused; published bundles have about ten."""

MAX_BYTES = 1_000_000
"""Size above which a configuration is not read; published ones have some ten thousand bytes."""

SUFFIXES = (".json", ".yaml", ".yml")

Place = tuple[str, ...]
"""Keys and indices that lead to a value."""


def read_config(path: Path) -> tuple[Any, list[str]]:
    """Read one file.

    Args:
        path: A file with one of `SUFFIXES`.

    Returns:
        Its content, and what is wrong with it, a sentence each. The content is None where it can't be read.
    """
    problems: list[str] = []
    try:
        text = read_text(path)
        content = _json(text, problems) if path.suffix.lower() == ".json" else _yaml(text, problems)
        for place, value in walk(content):
            if len(place) > MAX_DEPTH:
                return None, [f"is nested more than {MAX_DEPTH} levels deep; no person can review that"]
            if isinstance(value, float) and not math.isfinite(value):
                problems.append(f"'{id_of(place)}' is {value}, which is no JSON number; use null or a string")
    except UnicodeDecodeError:
        return None, ["is no UTF-8 text"]
    except RecursionError:
        return None, ["is nested too deep to be read"]
    except OSError as error:
        return None, [f"can't be read: {error.strerror}"]
    except ValueError as error:
        return None, [f"can't be read: {error}"]
    return content, problems


def read_text(path: Path) -> str:
    """The text of a file of moderate size.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is too large, no UTF-8, or nothing that ends, such as a pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no ordinary file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES / 1e6:g} MB; no person can review that")
    return content.decode("utf-8")


def inside(path: Path, root: Path) -> bool:
    """Whether a path of a bundle stays in it, links followed; one that leads nowhere or in a circle does not."""
    try:
        return path.resolve(strict=True).is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return False


def walk(content: Any) -> Iterator[tuple[Place, Any]]:
    """Every value in a configuration with its place, containers before what they hold, in the file's order."""
    stack: list[tuple[Place, Any]] = [((), content)]
    while stack:
        place, value = stack.pop()
        yield place, value
        if isinstance(value, dict):
            stack.extend(((*place, str(key)), part) for key, part in reversed(value.items()))
        elif isinstance(value, list):
            stack.extend(((*place, str(index)), value[index]) for index in reversed(range(len(value))))


def macro_file(text: str, root: Path) -> Path | None:
    """The file that a macro such as ``%configs/other.json#net`` reads, or None for one within its own configuration.

    Args:
        text: The macro. Its path counts from the bundle.
        root: The bundle.

    Raises:
        ValueError: If the file is not in the bundle, or can't be one.
    """
    match = re.match(r"%(.*\.(?:json|yaml|yml))(?:#|::|$)", text, re.IGNORECASE)
    if not match:
        return None
    try:
        file = (root / match.group(1)).resolve()
    except RuntimeError:  # links in a circle
        raise ValueError("which leads in a circle") from None
    if not file.is_relative_to(root.resolve()):
        raise ValueError("which pulls in a file from outside of the bundle")
    return file


def id_of(place: Place) -> str:
    """A place as users write it, for example ``train#dataset``."""
    return "#".join(place)


def _json(text: str, problems: list[str]) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        problems.extend(_twice(key for key, _ in items))
        return dict(items)

    return json.loads(text, object_pairs_hook=pairs)


def _yaml(text: str, problems: list[str]) -> Any:
    """YAML without objects of Python and without aliases.

    Raises:
        ValueError: If it is not that.
    """
    import yaml

    from medfl.utils.strict_yaml import shallow_events

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            problems.extend(_twice(self.construct_object(key, deep=True) for key, _ in node.value))
            return super().construct_mapping(node, deep)

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in shallow_events(text, Loader, MAX_DEPTH)):
            raise ValueError("it repeats parts by YAML aliases (*name), which hide what stands where")
        return yaml.load(text, Loader)  # a SafeLoader: plain data only
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _twice(keys: Any) -> list[str]:
    counts = Counter(map(str, keys))
    often = {key: count for key, count in counts.items() if count > 1}
    return [f"the key '{key}' stands {count} times in one object; only the last counts" for key, count in often.items()]
