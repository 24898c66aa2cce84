"""MONAI parsers that share one index of MONAI's components.

MONAI's own parser inspects all members of all MONAI modules before it builds its first component. That takes longer
than building most networks, and a run creates many parsers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from monai.bundle import ConfigParser
from monai.bundle.config_item import ComponentLocator


class SharedLocator(ComponentLocator):
    """Index of MONAI's components that is built once for each set of imported MONAI modules."""

    def _find_classes_or_functions(self, modnames: Sequence[str] | str) -> dict[str, list[str]]:
        names = (modnames,) if isinstance(modnames, str) else tuple(modnames)
        return _find_components(names)


@lru_cache(maxsize=1)
def _find_components(modules: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the modules of each class and function by its name, as MONAI finds them."""
    modules_by_name: dict[str, list[str]] = ComponentLocator()._find_classes_or_functions(modules)
    return modules_by_name


def share_components(parser: ConfigParser) -> ConfigParser:
    """Set the shared index of components in a parser in place, and return the parser."""
    parser.locator = SharedLocator()
    return parser


def make_parser(config: Mapping[str, Any] | None = None) -> ConfigParser:
    """Return a new parser of a configuration, which is empty by default."""
    return share_components(ConfigParser(config))
