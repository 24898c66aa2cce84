"""``medfl status``: how far runs are. Nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfl.report.formats import duration, size
from medfl.utils.files import bytes_in
from medfl.utils.text import visible

if TYPE_CHECKING:
    from medfl.runs.records import RunRecord

RECENT = 5
"""Rounds from which the time of a round is taken."""


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", show_default=False)],
) -> None:
    """Say how far runs are: rounds, scores, time left, disk use, bundles.

    Example: medfl status runs/fedavg runs/local
    """
    from medfl.runs.records import read_run

    for record in [read_run(folder) for folder in runs]:
        typer.echo(record.folder)
        for name, text in describe(record).items():
            typer.echo(f"  {name:<9} {visible(text)}")


def describe(record: RunRecord) -> dict[str, str]:
    """The lines about a run, by their names.

    Raises:
        StoreError: If its state can't be read.
    """
    from medfl.utils.locks import being_written

    writing = being_written(record.folder)
    done, planned = rounds_done(record, writing), int(record.run["rounds"])
    sites = _sites(record) if writing else ""
    return {
        "method": f"{record.method}, seed {record.seed}",
        "status": _status(record, writing),
        "rounds": f"{done} of {planned}",
        **({"sites": sites} if sites else {}),
        "score": _score(record),
        "time": _time(record, planned - done if writing or not record.summary else 0),
        "disk": f"{size(bytes_in(record.folder))}, of which state {size(bytes_in(record.folder / 'state'))}",
        "bundles": _bundles(record),
    }


def rounds_done(record: RunRecord, writing: bool) -> int:
    """How many rounds are over: those of the last commit, or of the summary where the run is over.

    Raises:
        StoreError: If there are commits and none can be read.
    """
    from medfl.errors import StoreError
    from medfl.runs.lifecycle import RunViewer

    if record.summary and not writing:
        return int(record.summary["rounds"])
    try:
        latest = RunViewer(record.folder).latest()
    except FileNotFoundError:
        raise StoreError(f"'{record.folder}' was written to while it was read. Ask again.") from None
    return latest[1].rounds_done if latest else 0


def _status(record: RunRecord, writing: bool) -> str:
    from medfl.runs.summary import ended_on

    if writing:
        return "being written now"
    if not record.summary:
        return "stopped; the same command continues it"
    status = f"{record.status}{ended_on(record.summary)}"
    if record.status != "finished":
        return f"{status}: {record.summary['reason']} The same command tries that round again."
    return f"{status}; cleaned, so it can't be continued" if record.run.get("cleaned") else status


def _sites(record: RunRecord) -> str:
    """Who is at work, silent or missing, as `medfl watch` shows it; empty where nothing was noted down."""
    from medfl.watch.folders import WatchedRun

    run = WatchedRun(record.folder, str(record.folder))
    return run.view().summary if run.look() else ""


def _score(record: RunRecord) -> str:
    """The mean over the sites of the task's first metric on the test data, after the last round that was scored."""
    metric = record.run["identity"]["task"]["metrics"][0]
    rows = record.metrics
    rows = rows[(rows["metric"] == metric) & (rows["split"] == "test") & (rows["moment"] == "aggregated")]
    rows = rows[(rows["site"] != "global") & rows["model"].isin(["personal", "global"])]
    if rows.empty:
        return "none yet"
    rows = rows[rows["round"] == rows["round"].max()]
    means = [
        f"{metric} {values.mean():.3f} ({model} model, mean of {values.count()} test sets)"
        for model, values in rows.groupby("model")["value"]
    ]
    return f"{', '.join(means)} after round {rows['round'].iloc[0]}"


def _time(record: RunRecord, rounds_left: int) -> str:
    seconds = seconds_per_round(record)
    if seconds is None:
        return "not known yet"
    left = f"; about {duration(rounds_left * seconds)} left" if rounds_left > 0 else ""
    return f"about {duration(seconds)} a round{left}"


def seconds_per_round(record: RunRecord) -> float | None:
    """An estimate from the sites' seconds of work and evaluation: the median of the last rounds.

    A round takes at least the time of its slowest site, and at least all sites' time shared by the workers.
    """
    rows = record.metrics
    rows = rows[rows["metric"].isin(["work_seconds", "evaluate_seconds"])]
    if rows.empty:
        return None
    spent = rows.groupby(["round", "site"])["value"].sum().groupby("round").agg(["sum", "max"])
    spent["sum"] /= record.run["execution"]["workers"]
    return float(spent.max(axis=1).tail(RECENT).median())


def missing_bundles(record: RunRecord) -> list[str]:
    """Sites without a bundle to take home."""
    sites = record.run["identity"]["sites"]
    return [site for site in sites if not (record.folder / "sites" / site / "models" / "model.pt").is_file()]


def _bundles(record: RunRecord) -> str:
    sites, missing = len(record.run["identity"]["sites"]), len(missing_bundles(record))
    pooled = ", and global" if (record.folder / "global" / "models" / "model.pt").is_file() else ""
    return "none; they are written at the end" if missing == sites else f"{sites - missing} of {sites} sites{pooled}"
