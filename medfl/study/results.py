"""A study's tables and reports, from its run folders. A run that is not finished is named with its status."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from medfl.errors import MedflError
from medfl.report.compare import compare, to_markdown
from medfl.report.groups import group_runs
from medfl.report.page import write_report
from medfl.report.runs import read_run
from medfl.store import write_atomic
from medfl.study.cohorts import Say
from medfl.study.jobs import Job
from medfl.study.runner import Outcome
from medfl.study.schema import Study, slug

OVER = ("finished", "diverged", "incomplete")
"""Statuses of runs that have scores to compare."""


def write_tables(study: Study, outcome: Outcome, data: str, out: Path) -> None:
    """Write ``results/<data>.md`` and ``.csv`` from the runs that are over.

    Args:
        study: The study.
        outcome: How its runs stand.
        data: Name of a data set.
        out: Folder of the study.
    """
    jobs = {job: status for job, status in outcome.status.items() if job.data == data}
    parts = [f"# {study.name}: {data}\n", f"{study.about}\n" if study.about else "", _standing(jobs)]
    table = None
    try:
        table = _table(study, [job for job, status in jobs.items() if status in OVER])
    except MedflError as error:
        parts.append(f"No table: {error}\n")
    if table is not None:
        parts.append(to_markdown(table))
        write_atomic(_path(out, data, "csv"), table.to_csv(index=False).encode())
    write_atomic(_path(out, data, "md"), "\n".join(part for part in parts if part).encode())


def write_page(outcome: Outcome, data: str, out: Path, say: Say) -> None:
    """Write ``results/<data>.html``, a page about the runs that are over, or say why there is none."""
    runs = [job.folder for job, status in outcome.status.items() if job.data == data and status in OVER]
    try:
        write_report(runs, _path(out, data, "html"))
    except MedflError as error:
        say(f"no page about {data}: {error}")


def _path(out: Path, data: str, kind: str) -> Path:
    return out / "results" / f"{slug(data)}.{kind}"


def _table(study: Study, jobs: list[Job]) -> pd.DataFrame | None:
    """The comparison, with the study's names of the rows; None before the first run is over."""
    rows = {name: number for number, name in enumerate(study.rows)}
    ordered = sorted(jobs, key=lambda job: (rows[job.row], job.seed))
    if not ordered:
        return None
    runs = [read_run(job.folder) for job in ordered]
    titles = {job.folder: job.row for job in ordered}
    labels = {group.label: titles[group.runs[0].folder] for group in group_runs(runs)}
    base = _label_of(labels, study.baseline)
    table = compare(runs, study.metrics or None, base)
    return table.assign(label=table["label"].map(labels), baseline=table["baseline"].map(labels))


def _label_of(labels: dict[str, str], row: str | None) -> str | None:
    """The label under which a row's runs are compared; None while it has no run, and the first row stands in."""
    return next((label for label, title in labels.items() if title == row), None)


def _standing(jobs: dict[Job, str]) -> str:
    """How many runs are finished, and a line for each that is not."""
    finished = sum(status == "finished" for status in jobs.values())
    lines = [f"{finished} of {len(jobs)} runs are finished.\n"]
    lines += [f"- {job.row}, seed {job.seed}: {status}" for job, status in jobs.items() if status != "finished"]
    return "\n".join(lines) + ("\n" if len(lines) > 1 else "")
