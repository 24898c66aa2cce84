"""YAML without its two traps: a key that stands twice is refused, and ``1e-3`` is a number (YAML 1.2)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from medfl.errors import SettingsError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, stricter."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML file that holds one mapping. Nothing in it is executed.

    Args:
        path: The file.
        what: What it is, for messages, for example ``study file``.

    Raises:
        SettingsError: If the file is missing, is no YAML, names a key twice, or holds something else.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise SettingsError(f"expected a {what} at '{path}': {error.strerror}. Check the path.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"the {what} '{path}' is no valid YAML: {error}") from None
    if not isinstance(content, dict):
        sort = "an empty file" if content is None else type(content).__name__
        raise SettingsError(f"expected keys and values in the {what} '{path}', got {sort}.")

    return content
