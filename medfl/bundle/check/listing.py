"""List all code that MONAI would run for a configuration, without running it."""

from __future__ import annotations

import builtins
import configparser
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medfl.bundle.check.reading import KeyPath, id_of, read_text, walk
from medfl.bundle.check.report import CodeEntry, CodeKind

if TYPE_CHECKING:
    pass

SPECIAL: dict[str, CodeKind] = {"_mode_": "mode", "_disabled_": "disabled", "_requires_": "requires"}
"""Maps each key with which MONAI changes what it runs to the kind of code (`CodeEntry.kind`)."""

THIS_BUNDLE, PYTHON, COMPUTED = "this bundle", "python", "computed"
"""Values of `CodeEntry.package` that name no installed package.

`THIS_BUNDLE`: the bundle's own modules. `PYTHON`: Python itself. `COMPUTED`: a name that is known only at run time.
"""


def find_code(file: str, content: Any, own: Collection[str]) -> list[CodeEntry]:
    """Return the code of one configuration, in the order of the file.

    Args:
        file: Path of the configuration in the bundle.
        content: Content of the configuration.
        own: Names of the modules in the bundle.
    """
    codes = []
    for place, value in walk(content):
        kind = _kind(_as_monai_reads(place), value)
        if kind is not None:
            text = value if isinstance(value, str) else str(value).lower()
            codes.append(CodeEntry(file, id_of(place), kind, text, _package(kind, text, own)))
    return codes


def find_logging_code(path: Path, file: str) -> list[CodeEntry]:
    """Return the code of a ``logging.conf``. Python evaluates the classes and arguments in it.

    Args:
        path: Path of the file.
        file: Its path in the bundle.

    Raises:
        OSError: If the file can't be read.
        ValueError: If the file is not a logging configuration.
    """
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(read_text(path))
    except configparser.Error as error:
        raise ValueError(" ".join(str(error).split())) from error
    return [
        CodeEntry(file, f"{section}#{key}", "logging", value)
        for section in parser.sections()
        for key, value in parser.items(section)
        if key in ("class", "args", "kwargs")
    ]


def _as_monai_reads(place: KeyPath) -> KeyPath:
    """Split the keys of a place as MONAI does, which merges the value of ``net::_target_`` or ``+net`` into ``net``."""
    return tuple(part.lstrip("+") for key in place for part in re.split("::|#", key))


def _kind(place: KeyPath, value: Any) -> CodeKind | None:
    """Return the kind of code of a value, or None if it is no code."""
    if isinstance(value, (dict, list)):
        return None
    if place and place[-1] == "_target_":
        return "target"
    special = [SPECIAL[key] for key in place if key in SPECIAL]
    if special:
        return special[-1]
    if not isinstance(value, str):
        return None
    if "spatial_shape" in place and value != "*":
        return "shape"
    if value.startswith("$"):
        return "import" if _imported(value) else "expression"
    return "macro" if value.startswith("%") else None


def _package(kind: CodeKind, text: str, own: Collection[str]) -> str:
    """Return the top-level package of a target or an import, as in `CodeEntry.package`."""
    if kind == "import":
        top = _imported(text).partition(".")[0]
    elif kind != "target":
        return ""
    elif text.startswith(("$", "@", "%")):
        return COMPUTED
    elif "." in text:
        top = text.partition(".")[0]
    else:
        return _package_of_bare(text)
    if top in own:
        return THIS_BUNDLE
    return PYTHON if top in sys.stdlib_module_names else top


def _package_of_bare(name: str) -> str:
    """Return the package of a name without dots. MONAI searches its own components first, then Python's names."""
    from medfl.networks.bundle_parser import SharedLocator  # imported here, because MONAI takes long to import

    if SharedLocator().get_component_module_name(name) is not None:
        return "monai"
    return PYTHON if hasattr(builtins, name) or name in sys.stdlib_module_names else name


def _imported(text: str) -> str:
    """Return the module that an import expression names, or "" for another text."""
    match = re.match(r"\$(?:import|from)\s+([\w.]+)", text)
    return match.group(1) if match else ""
