"""``medfl report``: one page about one or more runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from medfl.cli.plugin_options import Disabled, PluginFiles, load
from medfl.utils.imports import quick_imports


def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, finished or not.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page to write.", show_default="report.html in the first")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="What centres and classes are compared with.", show_default="local"),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Every picture as SVG and PDF, every table as CSV and LaTeX.", show_default=False
        ),
    ] = None,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Write one HTML page about runs: who gains, scores, curves, who holds what, costs, settings.

    With a run of the method local among them the page says for each site what it gains by training with the others.
    The page needs nothing else: mail it, print it, open it years later. A section that a plugin
    file brings is on it if the file is named here, too. With --figures all pictures and tables of the
    page are written as files for a paper, with the same numbers.

    Example: medfl report runs/fedavg runs/local --out runs/report.html --figures paper
    """
    with quick_imports():
        import torch

        from medfl.engine.runs.console import show_log
        from medfl.engine.runs.facts import without_logs
        from medfl_report.page import write_report
        from medfl_report.paper.files import INDEX

    show_log()
    registry = load(plugin, no_plugin)
    torch.set_num_threads(1)  # the tensors are small, and more threads only make them wait for each other
    with Console(stderr=True).status("Reading the runs, resampling their test images"):
        target = write_report(without_logs(runs), out, baseline=baseline, registry=registry, figures=figures)
    typer.echo(f"wrote {target}")
    if figures is not None:
        typer.echo(f"wrote pictures and tables to {figures}; {INDEX} says what is what")
