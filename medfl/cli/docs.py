"""``medfl docs``: a page for each method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.plugin_options import Disabled, PluginFiles, load


def command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.")],
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD", help="All of them by default.", show_default=False)
    ] = None,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Write a page for each method, from its class: what it does, what leaves a site, its settings.

    Without METHODS it writes the pages of all methods, and README.md with a list of them.
    """
    from medfl.docs_pages import write_pages

    registry = load(plugin, no_plugin)
    for path in write_pages(registry, methods or sorted(registry.methods), out, index=not methods):
        typer.echo(f"wrote {path}")
