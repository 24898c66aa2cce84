"""``medfl status``: show the progress of runs, without writing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.records.run_file import RunFile
from medfl.utils.text import visible


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", show_default=False)],
) -> None:
    """Show the progress of runs: rounds, scores, remaining time, disk use, bundles.

    Example: medfl status runs/fedavg runs/local
    """
    from medfl.engine.runs.facts import without_logs

    for folder, lines in [(folder, describe(folder)) for folder in without_logs(runs)]:
        typer.echo(folder)
        for name, text in lines.items():
            typer.echo(f"  {name:<9} {visible(text)}")


def describe(folder: Path) -> dict[str, str]:
    """Return the lines about a run by name: the state shown by `medfl monitor`, the disk use and the bundles.

    Args:
        folder: Run folder.

    Returns:
        method, status, rounds, score, time, disk and bundles; sites and warning if there is something to show.

    Raises:
        StoreError: If the folder contains no run, or a file of it can't be read.
    """
    from medfl.engine.runs.facts import read_facts
    from medfl.engine.status import DIVERGED, INCOMPLETE
    from medfl.utils.files import bytes_in
    from medfl.utils.formats import size
    from medfl_report.monitor.folders import MonitoredRun

    run, summary = read_facts(folder)
    constant = () if summary is None else summary.constant_predictions
    watched = MonitoredRun(folder, str(folder))
    watched.look()
    view = watched.view()
    sites = "" if view.over else view.summary
    status = view.status
    if run.cleaned:
        status += "; cleaned, so it can't be continued"
    elif view.over and summary is not None and summary.status in (DIVERGED, INCOMPLETE):
        status += " The same command tries that round again."
    return {
        "method": f"{run.identity.method}, seed {run.identity.seed}",
        "status": status,
        "rounds": f"{view.round} of {run.rounds}",
        **({"sites": sites} if sites else {}),
        "score": view.score,
        **({"warning": " ".join(entry.sentence for entry in constant)} if constant else {}),
        "time": view.time,
        "disk": f"{size(bytes_in(folder))}, of which state {size(bytes_in(folder / 'state'))}",
        "bundles": _bundles(folder, run),
    }


def _bundles(folder: Path, run: RunFile) -> str:
    from medfl.engine.runs.facts import sites_without_bundle

    sites, missing = len(run.identity.sites), len(sites_without_bundle(folder, run))
    pooled = ", and global" if (folder / "global" / "models" / "model.pt").is_file() else ""
    return "none; they are written at the end" if missing == sites else f"{sites - missing} of {sites} sites{pooled}"
