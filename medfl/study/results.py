"""A study's tables and reports, from its run folders. A run that is not finished is named with its status."""

from __future__ import annotations

from pathlib import Path

from medfl.errors import MedflError
from medfl.report.claims import check_claim, claims_markdown
from medfl.report.compare import compare, to_markdown
from medfl.report.forgetting import forgetting_metric, forgetting_table
from medfl.report.groups import group_runs
from medfl.report.page import write_report
from medfl.report.rounds_markdown import rounds_markdown
from medfl.report.runs import read_run
from medfl.store import write_atomic
from medfl.study.cohorts import Say
from medfl.study.jobs import Job
from medfl.study.runner import Outcome
from medfl.study.schema import Study, slug

OVER = ("finished", "diverged", "incomplete")
"""Statuses of runs that have scores to compare."""


def write_tables(study: Study, outcome: Outcome, data: str, out: Path) -> None:
    """Write ``results/<data>.md``, ``<data>.csv`` and ``<data>-rounds.csv`` from the runs that are over.

    Args:
        study: The study.
        outcome: How its runs stand.
        data: Name of a data set.
        out: Folder of the study.
    """
    jobs = {job: status for job, status in outcome.status.items() if job.data == data}
    over = _over(study, outcome, data)
    parts = [f"# {study.name}: {data}\n", f"{study.about}\n" if study.about else "", _standing(jobs)]
    try:
        if over:
            parts += _tables(study, data, over, out)
    except MedflError as error:
        parts.append(f"No table: {error}\n")
    write_atomic(_path(out, data, ".md"), "\n".join(part for part in parts if part).encode())


def write_page(study: Study, outcome: Outcome, data: str, out: Path, say: Say) -> None:
    """Write ``results/<data>.html``, a page about the runs that are over, or say why there is none."""
    over = _over(study, outcome, data)
    try:
        rows = [job.row for job in over]
        write_report([job.folder for job in over], _path(out, data, ".html"), rows, baseline=study.baseline)
    except MedflError as error:
        say(f"no page about {data}: {error}")


def _over(study: Study, outcome: Outcome, data: str) -> list[Job]:
    """The runs with scores to compare, in the order of the rows."""
    order = list(study.rows)
    over = [job for job, status in outcome.status.items() if job.data == data and status in OVER]
    return sorted(over, key=lambda job: order.index(job.row))


def _path(out: Path, data: str, ending: str) -> Path:
    return out / "results" / f"{slug(data)}{ending}"


def _tables(study: Study, data: str, jobs: list[Job], out: Path) -> list[str]:
    """Write the tables of at least one run, and say them in Markdown.

    While the baseline has no run, the first row stands in.
    """
    labels, runs = [job.row for job in jobs], [read_run(job.folder) for job in jobs]
    baseline = study.baseline if study.baseline in labels else None
    last = compare(runs, study.metrics or None, baseline, labels=labels)
    write_atomic(_path(out, data, ".csv"), last.to_csv(index=False).encode())
    groups = group_runs(runs, labels)
    claims = [check_claim(groups, claim.measure, claim.better, claim.than) for claim in study.claims]
    metric = forgetting_metric(groups)
    rounds = forgetting_table(groups, metric) if metric else None
    if rounds is None or rounds.empty:
        return [to_markdown(last), claims_markdown(claims)]
    write_atomic(_path(out, data, "-rounds.csv"), rounds.to_csv(index=False).encode())
    return [to_markdown(last), rounds_markdown(rounds), claims_markdown(claims)]


def _standing(jobs: dict[Job, str]) -> str:
    """How many runs are finished, and a line for each that is not."""
    finished = sum(status == "finished" for status in jobs.values())
    lines = [f"{finished} of {len(jobs)} runs are finished.\n"]
    lines += [f"- {job.row}, {job.repetition}: {status}" for job, status in jobs.items() if status != "finished"]
    return "\n".join(lines) + ("\n" if len(lines) > 1 else "")
