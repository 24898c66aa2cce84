"""``medfl monitor``: show running jobs in the terminal or on a local web page, without writing anything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from medfl.errors import SettingsError
from medfl.hooks import RunLocation
from medfl.plugins import load_plugins


def command(
    what: Annotated[
        Path, typer.Argument(metavar="RUN|STUDY|KIT", help="Folder of a run or a study, or a kit.", show_default=False)
    ],
    serve: Annotated[bool, typer.Option("--serve", help="Show a web page on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page.", show_default="a free one")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Show the current state once, and exit.")] = False,
) -> None:
    """Monitor running jobs: rounds, curves, training and silent sites, seconds, bytes, epsilon, log.

    The command reads progress.jsonl of the runs and writes nothing. Without a terminal it prints events as plain lines.
    It ends when the runs are over; a page and the view of a kit stay until Ctrl-C.

    Example: medfl monitor runs/fedavg --serve
    """
    from rich.console import Console

    from medfl_report.monitor.folders import MonitoredFolder
    from medfl_report.monitor.terminal import monitor

    if serve and once:
        raise SettingsError(
            "incompatible_settings",
            "expected --serve or --once, not both: a page stays until Ctrl-C.",
            settings=["serve", "once"],
        )
    location = load_plugins().run_location(what) or RunLocation(what)
    folder = MonitoredFolder(location.folder, stays=location.gets_more_runs)
    if serve:
        from medfl_report.monitor.serve import serving

        with serving(folder, str(what), port) as server:
            typer.echo(
                f"{server.address}\nOnly this machine can open it, and only with the whole address. Ctrl-C ends it."
            )
            while True:
                time.sleep(3600)
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        monitor(folder, console, not once)
    except KeyboardInterrupt:
        typer.echo("monitoring ended; the run continues", err=True)
