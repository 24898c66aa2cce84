"""Read an untrusted configuration, JSON or YAML, strictly as data, and find the places of its values."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_DEPTH = 50
"""Largest nesting depth of a configuration. Published bundles have a depth of about ten."""

MAX_BYTES = 1_000_000
"""Largest size of a configuration in bytes. Published bundles have some ten thousand bytes."""

SUFFIXES = (".json", ".yaml", ".yml")
"""Suffixes of configurations."""

KeyPath = tuple[str, ...]
"""Place of a value in a configuration: keys and list indices from the top, for example ``("train", "dataset")``."""


def read_config(path: Path) -> tuple[Any, list[str]]:
    """Read a configuration as data.

    Args:
        path: Path of a file with one of `SUFFIXES`.

    Returns:
        The content, or None if the file can't be read, and a phrase about each problem.
    """
    problems: list[str] = []
    try:
        text = read_text(path)
        content = _read_json(text, problems) if path.suffix.lower() == ".json" else _read_yaml(text, problems)
        for place, value in walk(content):
            if len(place) > MAX_DEPTH:
                return None, [f"is nested more than {MAX_DEPTH} levels deep; no person can review that"]
            if isinstance(value, float) and not math.isfinite(value):
                problems.append(f"'{id_of(place)}' is {value}, which JSON does not allow; use null or a string")
    except UnicodeDecodeError:
        return None, ["is not UTF-8 text"]
    except RecursionError:
        return None, ["is nested too deeply to be read"]
    except OSError as error:
        return None, [f"can't be read: {error.strerror}"]
    except ValueError as error:
        return None, [f"can't be read: {error}"]
    return content, problems


def read_text(path: Path) -> str:
    """Return the text of a file of at most `MAX_BYTES`.

    Raises:
        OSError: If the file can't be read.
        ValueError: If the file is too large, not UTF-8, or not an ordinary file, such as a pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is not an ordinary file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES / 1e6:g} MB; no person can review that")
    return content.decode("utf-8")


def inside(path: Path, root: Path) -> bool:
    """Return whether a path, with links resolved, lies in a bundle. A broken link or a cycle of links does not."""
    try:
        return path.resolve(strict=True).is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return False


def walk(content: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each value of a configuration with its place, in file order and containers before their content."""
    stack: list[tuple[KeyPath, Any]] = [((), content)]
    while stack:
        place, value = stack.pop()
        yield place, value
        if isinstance(value, dict):
            stack.extend(((*place, str(key)), part) for key, part in reversed(value.items()))
        elif isinstance(value, list):
            stack.extend(((*place, str(index)), value[index]) for index in reversed(range(len(value))))


def macro_file(text: str, root: Path) -> Path | None:
    """Return the file that a macro such as ``%configs/other.json#net`` reads, or None if it names no file.

    A macro without a file refers to its own configuration.

    Args:
        text: The macro. Its path is relative to the bundle.
        root: Folder of the bundle.

    Raises:
        ValueError: If the file is not in the bundle, or its path is a cycle of links.
    """
    match = re.match(r"%(.*\.(?:json|yaml|yml))(?:#|::|$)", text, re.IGNORECASE)
    if not match:
        return None
    try:
        file = (root / match.group(1)).resolve()
    except RuntimeError:  # a cycle of links
        raise ValueError("which is a cycle of links") from None
    if not file.is_relative_to(root.resolve()):
        raise ValueError("which reads a file outside of the bundle")
    return file


def id_of(place: KeyPath) -> str:
    """Return a place as an id, for example ``train#dataset``."""
    return "#".join(place)


def _read_json(text: str, problems: list[str]) -> Any:
    """Parse JSON and add a phrase about each repeated key to `problems`."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        problems.extend(_repeated_keys(key for key, _ in items))
        return dict(items)

    return json.loads(text, object_pairs_hook=pairs)


def _read_yaml(text: str, problems: list[str]) -> Any:
    """Parse YAML without Python objects and aliases, and add a phrase about each repeated key to `problems`.

    Raises:
        ValueError: If the text is not such YAML.
    """
    import yaml

    from medfl.utils.strict_yaml import shallow_events

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            problems.extend(_repeated_keys(self.construct_object(key, deep=True) for key, _ in node.value))
            return super().construct_mapping(node, deep)

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in shallow_events(text, Loader, MAX_DEPTH)):
            raise ValueError("it repeats parts by YAML aliases (*name), which make it hard to review")
        return yaml.load(text, Loader)  # a SafeLoader: plain data only
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _repeated_keys(keys: Any) -> list[str]:
    """Return a phrase about each key that occurs more than once."""
    counts = Counter(map(str, keys))
    often = {key: count for key, count in counts.items() if count > 1}
    return [f"the key '{key}' occurs {count} times in one object; only the last counts" for key, count in often.items()]
