"""Options ``--plugin`` and ``--no-plugin``, shared by all commands that have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from medfl.plugins import Registry, load_plugins

PluginFiles = Annotated[
    list[Path] | None, typer.Option("--plugin", metavar="FILE", help="Plugin file to load as well.")
]
"""Type of a command's parameter for the option ``--plugin``."""

Disabled = Annotated[
    list[str] | None, typer.Option("--no-plugin", metavar="NAME", help="Name of a plugin not to load.")
]
"""Type of a command's parameter for the option ``--no-plugin``."""


def load(files: Iterable[Path] | None = None, disabled: Iterable[str] | None = None) -> Registry:
    """Load the plugins and print a warning to stderr for each that is broken.

    Args:
        files: Plugin files, the values of ``--plugin``.
        disabled: Names of plugins not to load, the values of ``--no-plugin``.

    Raises:
        PluginError: If a plugin file or a name of a plugin is not valid, as in `medfl.plugins.load_plugins`.
    """
    registry = load_plugins(files or (), disabled or ())
    for problem in registry.problems:
        typer.echo(f"warning: {problem}", err=True)
    return registry
