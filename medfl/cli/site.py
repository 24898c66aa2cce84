"""``medfl site check``: what a site's administrator runs before the site connects."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def group() -> None:
    """Check a site's own file before it connects.

    Example: medfl site check --kit kits/north
    """


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="The site's file; by default medfl-site.toml of the kit, or of this folder.")
    ] = None,
    bundle: Annotated[str | None, typer.Option(help="Check only this bundle; by default all that are listed.")] = None,
    kit: Annotated[Path | None, typer.Option(help="NVFlare's startup kit of this participant, to be checked.")] = None,
) -> None:
    """Prove a site's file: each check is a line that begins with ok or FAIL.

    All checks are made: folders, secret, methods, device, privacy, and for each bundle its configuration, data, network
    and leaks between its splits. The status is 2 if one failed. Nothing is sent anywhere.

    Example: medfl site check --kit kits/north --bundle medmnist_classification
    """
    from medfl.deploy.site_check import check_site

    lines = check_site(file or default_file(kit), bundle, kit)
    for line in lines:
        typer.echo(str(line))
    failed = sum(not line.ok for line in lines)
    typer.echo(f"{len(lines)} checks, {failed} failed")
    if failed:
        raise typer.Exit(2)


def default_file(kit: Path | None) -> Path:
    """Where a site's file is when nobody says so: in the kit's folder ``local``, or in this folder."""
    from medfl.deploy.site_file import FILE

    inside = (kit or Path()) / "local" / FILE
    return inside if kit is not None or inside.is_file() else Path(FILE)
