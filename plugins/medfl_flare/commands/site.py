"""``medfl site``: what a site's administrator runs, before the site connects and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def group() -> None:
    """Check a site's own file before it connects, and what left the site afterwards.

    Example: medfl site check --kit kits/north
    """


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="The site's file; by default medfl-site.toml of the kit, or of this folder.")
    ] = None,
    bundle: Annotated[str | None, typer.Option(help="Check only this bundle; by default all that are listed.")] = None,
    kit: Annotated[Path | None, typer.Option(help="NVFlare's startup kit of this participant, to be checked.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not look whether the server can be reached.")] = False,
) -> None:
    """Prove a site's file: each check is a line that begins with ok, warn or FAIL.

    All checks are made: folders, locks, secret, methods, device, memory, privacy, and for each bundle its
    configuration, data, network, leaks between its splits, labels, intensities and voxels. With a site's kit the
    server is looked for, too: port, proxy, generation of the kit, clock; nothing of the site is sent there. The status
    is 2 if a check failed.

    Example: medfl site check --kit kits/north --bundle medmnist_classification
    """
    from medfl_flare.sites.check import check_site

    lines = []
    for line in check_site(file or default_file(kit), bundle, kit, online=not offline):
        typer.echo(str(line))
        lines.append(line)
    failed, warned = sum(not line.ok for line in lines), sum(line.warns for line in lines)
    typer.echo(f"{len(lines)} checks, {failed} failed" + (f", {warned} to be looked at" if warned else ""))
    if failed:
        raise typer.Exit(2)


@app.command()
def audit(
    file: Annotated[
        Path | None, typer.Argument(help="The site's file; by default medfl-site.toml of the kit, or of this folder.")
    ] = None,
    kit: Annotated[Path | None, typer.Option(help="NVFlare's startup kit of this participant.")] = None,
    last: Annotated[int, typer.Option(min=0, help="How many lines to show.")] = 20,
) -> None:
    """Show what was asked of a site and what left it.

    The entries are the lines of audit.jsonl in the site's state folder.

    Example: medfl site audit --kit kits/north --last 50
    """
    from medfl.utils.text import visible
    from medfl_flare.records.audit import read_entries
    from medfl_flare.sites.audit import audit_file, in_words
    from medfl_flare.sites.file import read_site_file

    path = audit_file(read_site_file(file or default_file(kit)))
    entries = read_entries(path)
    for entry in entries[len(entries) - last :] if last else []:
        typer.echo(visible(in_words(entry)))
    typer.echo(f"{len(entries)} lines in '{path}'")


def default_file(kit: Path | None) -> Path:
    """Where a site's file is when nobody says so: in the kit's folder ``local``, or in this folder."""
    from medfl_flare.sites.file import FILE

    inside = (kit or Path()) / "local" / FILE
    return inside if kit is not None or inside.is_file() else Path(FILE)
