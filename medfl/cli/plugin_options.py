"""The options ``--plugin`` and ``--no-plugin``, alike in every command that has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from medfl.plugins import Registry, load_plugins

PluginFiles = Annotated[list[Path] | None, typer.Option("--plugin", metavar="FILE", help="Load a plugin file too.")]
"""The type of a parameter for ``--plugin``."""

Disabled = Annotated[list[str] | None, typer.Option("--no-plugin", metavar="NAME", help="Leave a plugin out.")]
"""The type of a parameter for ``--no-plugin``."""


def load(files: Iterable[Path] | None = None, disabled: Iterable[str] | None = None) -> Registry:
    """Load the plugins, with a warning on stderr for each problem.

    Args:
        files: From ``--plugin``.
        disabled: From ``--no-plugin``.

    Raises:
        PluginError: As `medfl.plugins.load_plugins` does.
    """
    registry = load_plugins(files or (), disabled or ())
    for problem in registry.problems:
        typer.echo(f"warning: {problem}", err=True)
    return registry
