"""The command ``medfl status``: progress, scores and disk use of runs. It writes no files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.records.run_file import RunFile
from medfl.utils.text import visible


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", show_default=False)],
) -> None:
    """Show the progress of runs: rounds, scores, time left, disk use and bundles.

    Example: medfl status runs/fedavg runs/local
    """
    from medfl.engine.runs.run_files import exclude_logs

    for folder, lines in [(folder, run_status_lines(folder)) for folder in exclude_logs(runs)]:
        typer.echo(folder)
        for name, text in lines.items():
            typer.echo(f"  {name:<9} {visible(text)}")


def run_status_lines(folder: Path) -> dict[str, str]:
    """Return the status of a run as lines of text.

    Args:
        folder: The run folder.

    Returns:
        Mapping from the name of each line to the text, in the order of the output: ``method``, ``status``, ``rounds``,
        ``sites`` (if the run is not over), ``score``, ``warning`` (if a site's predictions are constant), ``time``,
        ``disk`` and ``bundles``.

    Raises:
        StoreError: If the folder holds no run, or a file of it can't be read.
    """
    from medfl.engine.runs.run_files import read_run_files
    from medfl.engine.status import DIVERGED, INCOMPLETE
    from medfl.utils.files import bytes_in
    from medfl.utils.formats import size
    from medfl_report.monitor.monitored_folders import MonitoredRun

    run, summary = read_run_files(folder)
    constant_predictions = () if summary is None else summary.constant_predictions
    monitored_run = MonitoredRun(folder, str(folder))
    monitored_run.read_events()
    view = monitored_run.view()
    sites = "" if view.is_over else view.summary
    status = view.status
    if run.cleaned:
        status += "; cleaned, so it can't be resumed"
    elif view.is_over and summary is not None and summary.status in (DIVERGED, INCOMPLETE):
        status += " Run the same command again to repeat that round."
    return {
        "method": f"{run.identity.method}, seed {run.identity.seed}",
        "status": status,
        "rounds": f"{view.rounds_done} of {run.rounds}",
        **({"sites": sites} if sites else {}),
        "score": view.score,
        **({"warning": " ".join(entry.sentence for entry in constant_predictions)} if constant_predictions else {}),
        "time": view.time,
        "disk": f"{size(bytes_in(folder))}, of which state {size(bytes_in(folder / 'state'))}",
        "bundles": _bundles_text(folder, run),
    }


def _bundles_text(folder: Path, run: RunFile) -> str:
    """Return which bundles the run folder has, such as ``3 of 3 sites, and global``."""
    from medfl.engine.runs.run_files import sites_without_bundle

    sites, missing = len(run.identity.sites), len(sites_without_bundle(folder, run))
    global_bundle = ", and global" if (folder / "global" / "models" / "model.pt").is_file() else ""
    if missing == sites:
        return "none; they are written at the end"
    return f"{sites - missing} of {sites} sites{global_bundle}"
