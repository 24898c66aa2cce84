"""``medfl report``: write an HTML report about one or more runs."""

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
        Path | None,
        typer.Option(metavar="FILE", help="Path of the report.", show_default="report.html in the first run"),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="Label of the reference that methods, centres and classes are compared with.",
            show_default="local",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write figures (SVG, PDF) and tables (CSV, LaTeX) for a paper, such as methods.tex.",
            show_default=False,
        ),
    ] = None,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Write one HTML page about runs: comparison of methods, effects at sites, performance, curves, cost, settings.

    With a run of the method local the page compares each site's federated model with local training. The page is
    self-contained. Sections of a plugin file are included if the file is named here. With --figures the command also
    writes the figures and tables that a paper would use: methods.tex and methods.csv have one row for each method.

    Example: medfl report runs/fedavg runs/local --out runs/report.html --figures paper
    """
    with quick_imports():
        import torch

        from medfl.engine.runs.console import show_log
        from medfl.engine.runs.run_files import exclude_logs
        from medfl_report.page import write_report
        from medfl_report.paper.export import INDEX

    show_log()
    registry = load(plugin, no_plugin)
    torch.set_num_threads(1)  # the tensors are small, and more threads are slower
    with Console(stderr=True).status("Reading the runs, computing confidence intervals"):
        target = write_report(exclude_logs(runs), out, baseline=baseline, registry=registry, figures=figures)
    typer.echo(f"wrote {target}")
    if figures is not None:
        typer.echo(f"wrote figures and tables to {figures}; {INDEX} lists them")
