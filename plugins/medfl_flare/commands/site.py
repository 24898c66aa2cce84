"""Commands ``medfl site``, for the administrator of a site: checks before the site connects, and the audit record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
"""Typer application with all subcommands of ``medfl site``."""


@app.callback()
def group() -> None:
    """Check a site's own file before the site connects, and show which data left the site.

    Example: medfl site check --kit kits/north
    """


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="The site's file; by default medfl-site.toml of the kit, or of this folder.")
    ] = None,
    bundle: Annotated[str | None, typer.Option(help="Check only this bundle; by default all listed bundles.")] = None,
    kit: Annotated[Path | None, typer.Option(help="NVFlare's startup kit of this participant; checked, too.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Skip the checks that connect to the server.")] = False,
) -> None:
    """Check a site's own file: each check prints a line that begins with ok, warn or FAIL.

    All checks run: folders, locks, secret, methods, device, memory, privacy, and for each bundle its configuration,
    data, network, leaks between its splits, labels, intensities and voxels. With a site's kit the server is checked,
    too: port, proxy, generation of the kit, clock. Nothing about the site is sent to the server. The exit status is 2
    if a check failed.

    Example: medfl site check --kit kits/north --bundle medmnist_classification
    """
    from medfl_flare.sites.site_check import check_site

    lines = []
    for line in check_site(file or default_file(kit), bundle, kit, online=not offline):
        typer.echo(str(line))
        lines.append(line)
    failed, warned = sum(not line.ok for line in lines), sum(line.warns for line in lines)
    typer.echo(f"{len(lines)} checks, {failed} failed" + (f", {warned} with warnings" if warned else ""))
    if failed:
        raise typer.Exit(2)


@app.command()
def audit(
    file: Annotated[
        Path | None, typer.Argument(help="The site's file; by default medfl-site.toml of the kit, or of this folder.")
    ] = None,
    kit: Annotated[Path | None, typer.Option(help="NVFlare's startup kit of this participant.")] = None,
    last: Annotated[int, typer.Option(min=0, help="Number of the newest entries to show.")] = 20,
) -> None:
    """Show the messages that a site received, and the data that left it.

    The entries are the lines of audit.jsonl in the site's state folder.

    Example: medfl site audit --kit kits/north --last 50
    """
    from medfl.utils.text import visible
    from medfl_flare.records.audit import read_entries
    from medfl_flare.sites.audit_log import audit_path, entry_text
    from medfl_flare.sites.site_file import read_site_file

    path = audit_path(read_site_file(file or default_file(kit)))
    entries = read_entries(path)
    for entry in entries[len(entries) - last :] if last else []:
        typer.echo(visible(entry_text(entry)))
    typer.echo(f"{len(entries)} lines in '{path}'")


def default_file(kit: Path | None) -> Path:
    """Return the default path of a site's own file: in the kit's folder ``local``, or in the current folder."""
    from medfl_flare.sites.site_file import SITE_FILE_NAME

    inside = (kit or Path()) / "local" / SITE_FILE_NAME
    return inside if kit is not None or inside.is_file() else Path(SITE_FILE_NAME)
