"""The command ``medfl monitor``: a live view of runs in the terminal or on a local page. It writes no files.

A startup kit is the folder with which the server or a site of a distributed run is started on its own machine.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from medfl.errors import SettingsError
from medfl.hooks import RunLocation
from medfl.plugins import load_plugins


def command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|STUDY|KIT", help="Folder of a run or a study, or a startup kit.", show_default=False
        ),
    ],
    serve: Annotated[bool, typer.Option("--serve", help="Show the runs on a local web page.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page.", show_default="a free one")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Show the current state once and exit.")] = False,
) -> None:
    """Monitor runs live: rounds, curves, activity of each site, seconds, bytes, epsilon and log.

    The command reads the events in progress.jsonl and writes no files. Without a terminal it prints log lines. It ends
    when the runs are over; with --serve or with a startup kit it continues until Ctrl-C.

    Example: medfl monitor runs/fedavg --serve
    """
    from rich.console import Console

    from medfl_report.monitor.monitored_folders import MonitoredFolder
    from medfl_report.monitor.terminal_view import monitor

    if serve and once:
        raise SettingsError(
            "incompatible_settings",
            "expected --serve or --once, not both: the page is served until Ctrl-C.",
            settings=["serve", "once"],
        )
    location = load_plugins().run_location(path) or RunLocation(path)
    folder = MonitoredFolder(location.folder, gets_more_runs=location.gets_more_runs)
    if serve:
        from medfl_report.monitor.page_server import serve_page

        with serve_page(folder, str(path), port) as server:
            typer.echo(
                f"{server.address}\n"
                "Only this machine can open the page, and only with the whole address. Press Ctrl-C to stop it."
            )
            while True:
                time.sleep(3600)
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        monitor(folder, console, follow=not once)
    except KeyboardInterrupt:
        typer.echo("stopped monitoring; the run continues", err=True)
