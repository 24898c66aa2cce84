"""``medfl new-method``: write the first file, or a package, of a new method."""

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

SHARED_TEMPLATES = ("imports", "class")
"""Names of the templates that the file of a single-file plugin and the files of a package both include."""


def command(
    name: Annotated[str, typer.Argument(help="Name of the method on the command line, for example my_prox.")],
    package: Annotated[bool, typer.Option("--package", help="Write a package that pip can install.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write in.", show_default="here")] = Path(),
) -> None:
    """Write a plugin file for a new method, and its test.

    The file works without changes: FedAvg with a small proximal term. Replace that by your idea.

    Example: medfl new-method my_prox
    """
    check_name(name, "method")
    written = write(package_files(name) if package else plugin_files(name), out)
    for path in written:
        typer.echo(f"wrote {path}")
    listing = f"medfl list methods --plugin {written[0]} --search {name}"
    typer.echo(f"Next: {f'pip install -e {out / name}' if package else listing}")
    typer.echo(f"Test: pytest {written[-1]}")


def check_name(name: str, kind: str) -> None:
    """Raise if a name can't be the name of a module, or is already in use.

    Args:
        name: Name of the new method or data set.
        kind: ``method`` or ``dataset``.

    Raises:
        SettingsError: If the name is not a lower-case identifier, or names an importable module.
        PluginError: If an entry of this kind, or a plugin, of this name is installed.
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
    if givers := registry.plugins_listing(kind, name):
        raise PluginError(
            "name_in_use",
            f"The plugin '{givers[0]}' already has a {kind} '{name}'. Choose another name.",
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
    if name in sys.stdlib_module_names or _is_importable(name):
        raise SettingsError(
            "name_in_use",
            f"'{name}' is the name of an installed Python module, which the new file would hide. Choose another name.",
            what="module",
            name=name,
        )


def plugin_files(name: str) -> dict[str, str]:
    """Return the text of a plugin of one file and of its test, by relative path."""
    return {
        f"{name}.py": render("plugin_file", name, SHARED_TEMPLATES),
        f"test_{name}.py": render("test_plugin_file", name),
    }


def package_files(name: str) -> dict[str, str]:
    """Return the texts of a package's files by relative path.

    The hook of the package does not import the method, so that ``medfl list`` stays quick.
    """
    module = f"{name}/medfl_{name}"
    return {
        f"{name}/pyproject.toml": render("pyproject", name),
        f"{module}/__init__.py": render("package_init", name),
        f"{module}/index.json": render("index", name),
        f"{module}/method.py": render("package_method", name, SHARED_TEMPLATES),
        f"{name}/tests/test_{name}.py": render("test_package", name),
    }


def write(texts: dict[str, str], folder: Path) -> list[Path]:
    """Write files below a folder. If one of them exists already, write nothing and raise.

    Args:
        texts: Maps the relative path of each file to its text.
        folder: Folder to write in; created if necessary.

    Returns:
        Paths of the files, in the order of `texts`.

    Raises:
        SettingsError: If one of the files exists already.
    """
    paths = {folder / relative: text for relative, text in texts.items()}
    for path in paths:
        if path.exists():
            raise SettingsError(
                "existing_file",
                f"'{path}' exists already and is not overwritten. Choose another name or --out.",
                path=path,
            )
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(paths)


def _is_importable(name: str) -> bool:
    """Return whether a module of this name, other than a mere folder, can be imported."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def render(template: str, name: str, pieces: Iterable[str] = (), **words: str) -> str:
    """Return the text of a template with all placeholders replaced.

    Args:
        template: Name of the template, without its suffix.
        name: Name of the new method or data set.
        pieces: Names of templates that the template includes as ``${NAME_piece}``.
        **words: Values of further placeholders, besides ``name``, ``dist``, ``class_name`` and ``distribution``.
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
    """Read a template from the folder ``templates``."""
    return Template((files("medfl.cli") / "templates" / f"{template}.template").read_text(encoding="utf-8"))
