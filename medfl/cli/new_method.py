"""``medfl new-method``: the first file of a new method."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from medfl.cli.plugin_options import load
from medfl.errors import PluginError, SettingsError
from medfl.version import DISTRIBUTION

PIECES = ("imports", "class")
"""Templates that are common to both shapes of a plugin."""


def command(
    name: Annotated[str, typer.Argument(help="What users will type, for example my_prox.")],
    package: Annotated[bool, typer.Option("--package", help="A package that pip can install.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.", show_default="here")] = Path(),
) -> None:
    """Write a plugin file for a new method, and its test.

    What is written works as it stands: FedAvg with a small proximal term, to be replaced by your idea.

    Example: medfl new-method my_prox
    """
    check_name(name, "method")
    written = write(package_files(name) if package else plugin_files(name), out)
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo("Next: " + (f"pip install -e {out / name}" if package else f"medfl list methods --plugin {written[0]}"))
    typer.echo(f"Test: pytest {written[-1]}")


def check_name(name: str, kind: str) -> None:
    """Refuse a name that can't be a module, or that something else has.

    Raises:
        SettingsError: If it is no lower-case identifier, or the name of an importable module.
        PluginError: If one of this kind, or a plugin, of this name is installed.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise SettingsError(
            "invalid_name",
            f"Expected a {kind} name of lower-case letters, digits and single underscores, such as 'my_prox'; "
            f"got '{name}'.",
            what=kind,
            name=name,
        )
    registry = load()
    if givers := registry.givers(kind, name):
        raise PluginError(
            "name_in_use",
            f"A {kind} '{name}' is already given by plugin '{givers[0]}'. Choose another name.",
            what=kind,
            name=name,
            plugin=givers[0],
        )
    if name in registry.plugins:
        raise PluginError(
            "name_in_use",
            f"A plugin '{name}' is already installed ({registry.plugins[name]}). Choose another name.",
            what="plugin",
            name=name,
        )
    if name in sys.stdlib_module_names or _installed(name):
        raise SettingsError(
            "name_in_use",
            f"'{name}' is the name of an installed Python module, which it would hide. Choose another.",
            what="module",
            name=name,
        )


def plugin_files(name: str) -> dict[str, str]:
    """Relative path to text of a plugin of one file, and its test."""
    return {
        f"{name}.py": render("plugin_file", name, PIECES),
        f"test_{name}.py": render("test_plugin_file", name),
    }


def package_files(name: str) -> dict[str, str]:
    """Relative path to text of a package. Its hook does not import the method, so that ``medfl list`` stays quick."""
    module = f"{name}/medfl_{name}"
    return {
        f"{name}/pyproject.toml": render("pyproject", name),
        f"{module}/__init__.py": render("package_init", name),
        f"{module}/index.json": render("index", name),
        f"{module}/method.py": render("package_method", name, PIECES),
        f"{name}/tests/test_{name}.py": render("test_package", name),
    }


def write(texts: dict[str, str], folder: Path) -> list[Path]:
    """Write files below a folder, or none of them.

    Raises:
        SettingsError: If one is already there.
    """
    paths = {folder / relative: text for relative, text in texts.items()}
    for path in paths:
        if path.exists():
            raise SettingsError(
                "existing_file",
                f"'{path}' is already there and is not overwritten. Choose another name or --out.",
                path=path,
            )
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(paths)


def _installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def render(template: str, name: str, pieces: Iterable[str] = (), **words: str) -> str:
    """Fill a template.

    Args:
        template: Its name.
        name: Of what is written.
        pieces: Templates that it may have as ``${..._piece}``.
        words: What else it has, beside ``name``, ``dist``, ``class_name`` and ``distribution``.
    """
    words |= {
        "name": name,
        "distribution": DISTRIBUTION,
        "dist": f"medfl-{name.replace('_', '-')}",
        "class_name": "".join(part.capitalize() for part in name.split("_")),
    }
    texts = {f"{piece}_piece": _read(piece).substitute(words).rstrip("\n") for piece in pieces}
    return _read(template).substitute(words | texts)


def _read(template: str) -> Template:
    return Template((files("medfl.cli") / "templates" / f"{template}.template").read_text(encoding="utf-8"))
