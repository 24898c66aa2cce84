"""``medfl site``: what a site's administrator runs, before the site connects and afterwards."""

from __future__ import annotations

import itertools
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
    drill: Annotated[
        bool, typer.Option("--drill", help="Rehearse a run with the server, too, on made-up data. Needs --kit.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not look whether the server can be reached.")] = False,
) -> None:
    """Prove a site's file: each check is a line that begins with ok, warn or FAIL.

    All checks are made: folders, locks, secret, methods, device, memory, privacy, and for each bundle its
    configuration, data, network, leaks between its splits, labels, intensities and voxels. With a site's kit the
    server is looked for, too: port, proxy, generation of the kit, clock; nothing of the site is sent there. The status
    is 2 if a check failed.

    With --drill the site then rehearses two rounds with the real server in about two minutes: cases are made up, no
    data, state, secret or ledger of the site is touched, and the server keeps nothing. It says what a round will cost.

    Example: medfl site check --kit kits/north --bundle medmnist_classification
    """
    from medfl_flare.drill.check import check_drill
    from medfl_flare.sites.check import check_site

    lines = []
    path = file or default_file(kit)
    for line in itertools.chain(
        check_site(path, bundle, kit, online=not offline), check_drill(path, bundle, kit) if drill else ()
    ):
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
    verify: Annotated[bool, typer.Option("--verify", help="Check the chain of all lines.")] = False,
    hash: Annotated[  # noqa: A002 - the option's name
        str | None, typer.Option(help="The hash of a last line that was noted before: is it still there?")
    ] = None,
    last: Annotated[int, typer.Option(min=0, help="How many lines to show.")] = 20,
) -> None:
    """Show what was asked of a site and what left it.

    Each line of audit.jsonl in the site's state folder holds the hash of the line before and its own. With --verify all
    are checked, and the status is 2 if one was changed, removed or inserted. Lines that are missing at the end show
    only by a hash that was noted elsewhere: give it with --hash.

    Example: medfl site audit --kit kits/north --verify
    """
    from medfl.utils.chain import read
    from medfl.utils.text import visible
    from medfl_flare.sites.audit import audit_file, in_words
    from medfl_flare.sites.file import read_site_file

    path = audit_file(read_site_file(file or default_file(kit)))
    chain = read(path)
    for entry in chain.entries[len(chain.entries) - last :] if last else []:
        typer.echo(visible(in_words(entry)))
    typer.echo(f"{len(chain.entries)} lines in '{path}'; hash of the last one: {(chain.hashes or ['none'])[-1]}")
    problems = [f"line {number} was changed, or something before it was removed or inserted" for number in chain.broken]
    problems += [f"the hash {hash} is not among the lines"] if hash is not None and hash not in chain.hashes else []
    if verify or hash is not None:
        for problem in problems:
            typer.echo(f"FAIL: {problem}")
        typer.echo(f"{len(problems)} problems" if problems else "ok: all lines fit")
        if problems:
            raise typer.Exit(2)


def default_file(kit: Path | None) -> Path:
    """Where a site's file is when nobody says so: in the kit's folder ``local``, or in this folder."""
    from medfl_flare.sites.file import FILE

    inside = (kit or Path()) / "local" / FILE
    return inside if kit is not None or inside.is_file() else Path(FILE)
