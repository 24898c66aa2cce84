"""Index of a package's methods: a file from which ``medfl list`` reads records without importing the methods.

``python -m medfl.testing.method_index PACKAGE`` writes it. Each record contains the attributes of the method's class.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from medfl.hooks import MethodRecord
from medfl.testing.suite import expect

INDEX_FILE = "index.json"
"""Name of the index file in the package's folder."""


def index_text(package: str) -> str:
    """Return the index of a package: JSON with one line per class that declares its own ``family``.

    Args:
        package: Importable name of the package. The function imports all its modules.

    Raises:
        PluginError: If such a class does not declare its name, paper and summary.
    """
    records = sorted(_records(_modules(package)), key=lambda record: record.name)
    lines = [json.dumps(asdict(record), default=sorted, ensure_ascii=False) for record in records]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def check_index(package: str) -> None:
    """Check that the index of a package agrees with the classes of its methods.

    Args:
        package: Importable name of the package.

    Raises:
        AssertionError: If the file is missing or differs. The message names the command that updates it.
    """
    path = _path(package)
    expect(
        path.is_file() and path.read_text(encoding="utf-8") == index_text(package),
        f"{path} differs from the classes of {package}; run `python -m medfl.testing.method_index {package}`",
    )


def _modules(package: str) -> list[ModuleType]:
    """Import all modules of a package."""
    top = importlib.import_module(package)
    names = [info.name for info in pkgutil.walk_packages(top.__path__, f"{package}.")]
    return [importlib.import_module(name) for name in names]


def _records(modules: list[ModuleType]) -> list[MethodRecord]:
    """Return the records of all methods that the modules define."""
    kinds = [kind for module in modules for kind in vars(module).values() if _is_method_of(module, kind)]
    return [MethodRecord.of(kind) for kind in kinds]


def _is_method_of(module: ModuleType, kind: object) -> bool:
    """Return True if an object is a method's class that the module defines."""
    return isinstance(kind, type) and kind.__module__ == module.__name__ and "family" in vars(kind)


def _path(package: str) -> Path:
    """Return the path of a package's index."""
    file = importlib.import_module(package).__file__
    assert file is not None
    return Path(file).with_name(INDEX_FILE)


def main(package: Annotated[str, typer.Argument(help="Importable name, for example medfl_methods.")]) -> None:
    """Write the index of a package's methods next to its __init__.py."""
    path = _path(package)
    path.write_text(index_text(package), encoding="utf-8")
    typer.echo(f"wrote {path}")


if __name__ == "__main__":
    typer.run(main)
