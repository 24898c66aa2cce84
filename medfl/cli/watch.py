"""``medfl watch``: runs as they happen, in the terminal or on a page of this machine. Nothing is written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from medfl.errors import SettingsError


def command(
    what: Annotated[
        Path, typer.Argument(metavar="RUN|STUDY|KIT", help="A run's folder, a study's, or a kit.", show_default=False)
    ],
    serve: Annotated[bool, typer.Option("--serve", help="Show it on a page of this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page.", show_default="a free one")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Show how it stands, and end.")] = False,
) -> None:
    """Watch runs as they happen: rounds, curves, who trains, who is silent, seconds, bytes, epsilon, log.

    It reads what runs note down in progress.jsonl and writes nothing. Without a terminal it says what happens in plain
    lines. It ends when the runs are over; a page stays until Ctrl-C, and so does the view of a kit.

    Example: medfl watch runs/fedavg --serve
    """
    from rich.console import Console

    from medfl.watch.folders import WatchedFolder
    from medfl.watch.terminal import watch

    if serve and once:
        raise SettingsError(
            "incompatible_settings",
            "expected --serve or --once, not both: a page goes on until Ctrl-C.",
            settings=["serve", "once"],
        )
    folder = WatchedFolder(runs_of(what), stays=is_kit(what))
    if serve:
        from medfl.watch.serve import serving

        with serving(folder, str(what), port) as server:
            typer.echo(
                f"{server.address}\nOnly this machine can reach it, and only with the whole address. Ctrl-C ends it."
            )
            while True:
                time.sleep(3600)
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        watch(folder, console, not once)
    except KeyboardInterrupt:
        typer.echo("no longer watching; the run goes on", err=True)


def is_kit(what: Path) -> bool:
    """Whether it is a participant's startup kit."""
    return (what / "startup").is_dir()


def runs_of(what: Path) -> Path:
    """The folder in which the runs are: of a participant's kit its own file says where, of a study its file does.

    Raises:
        SettingsError: If it is a researcher's kit.
        MedflError: If the file of a kit or a study can't be read.
    """
    if what.suffix in (".yaml", ".yml"):
        from medfl.studies.reading import read_study
        from medfl.studies.schema import FULL
        from medfl.studies.study import default_out

        return default_out(read_study(what, FULL, None, ()), FULL)
    if not is_kit(what):
        return what
    from medfl.deploy.kit import kind_of
    from medfl.deploy.sites.file import FILE, read_site_file

    if kind_of(what) == "admin":
        raise SettingsError(
            "wrong_kit",
            f"'{what}' is a researcher's kit. Give the folder of a run that you submitted with it: what happens at the "
            "server comes there while the run is followed.",
            path=what,
        )
    return read_site_file(what / "local" / FILE).state / "runs"
