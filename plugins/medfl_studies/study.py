"""A study from its file to its tables."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

from medfl.bundle.files import find_bundle
from medfl.plugins import Registry, load_plugins
from medfl.utils.formats import table_lines
from medfl_studies.attacks import AttackJob, attack_jobs
from medfl_studies.checks import check_attacks, check_options, check_rows, find_source
from medfl_studies.cohorts import check_data, make_data
from medfl_studies.jobs import Job, expand, is_adopted
from medfl_studies.reading import read_study
from medfl_studies.results import write_page, write_people, write_tables
from medfl_studies.runner import Launch, Outcome, W, only_study, run_jobs, study_progress
from medfl_studies.schema import FULL, Study, slug
from medfl_studies.weights import find_weights

TABLES_SHARE = 0.05
"""Share of a study's time that may go into tables before its end. They compare all runs, so that each takes longer."""


@dataclass(frozen=True)
class Prepared:
    """A study that was checked, ready to run.

    Attributes:
        study: The study at its scale.
        jobs: Its runs.
        attacks: What is done to them once they are finished.
        registry: What the plugins offer.
        source: Folder of the data as they are, or None.
        out: Folder of the study.
        note: What is to be said before anything runs; may be empty.
    """

    study: Study
    jobs: list[Job]
    attacks: list[AttackJob]
    registry: Registry
    source: Path | None
    out: Path
    note: str = ""


def load_study(
    file: Path,
    source: Path | None = None,
    out: Path | None = None,
    scale: str = FULL,
    seeds: int | None = None,
    workers: int | None = None,
    data: Sequence[str] = (),
) -> Prepared:
    """Read and check a study; nothing is written.

    Args:
        file: The study file.
        source: Folder of the data as they are; by default that of the environment variable ``MEDFL_DATA``.
        out: Folder of the study; by default that of `default_out`.
        scale: One of the study's scales, or ``full``.
        seeds: Number of seeds that replaces the study's, >= 1.
        workers: Processes that train sites, in each run.
        data: Names of the study's data sets to use; none means all.

    Raises:
        MedflError: If anything is not as needed: the file, the bundle, a method, an option, data.
    """
    source = find_source(source)
    study, note = find_weights(read_study(file, scale, seeds, data), source)
    near = file.parent / study.bundle
    bundle = (near if near.is_dir() else find_bundle(study.bundle)).absolute()
    place = (out or default_out(study, scale)).absolute()
    registry = load_plugins(study.settings.get("plugins", ()), study.settings.get("disabled_plugins", ()))
    check_rows(study, registry)
    check_attacks(study, registry)
    check_data(study, source, place, registry, is_adopted(bundle))
    jobs = expand(study, bundle, source, place, workers)
    if jobs:
        check_options(bundle, jobs)
    return Prepared(study, jobs, attack_jobs(study, jobs, registry), registry, source, place, note)


def default_out(study: Study, scale: str) -> Path:
    """``runs/<name>``, with the scale behind it unless that is ``full``: scales are unlike runs."""
    return Path("runs") / (study.name if scale == FULL else f"{study.name}-{slug(scale)}")


def run_study(
    prepared: Prepared, start: Launch | None = None, at_once: int = 1, clean: Callable[[Path], object] | None = None
) -> Outcome[Job | AttackJob]:
    """Run a study to its end; given again it continues, and leaves what is finished untouched.

    Tables are written after a run, unless they would take more than `TABLES_SHARE` of the time, and in the end.

    Args:
        prepared: From `load_study`.
        start: Runs a command line; by default as a process.
        at_once: How many runs are at work at the same time, >= 1.
        clean: Called with the folder of each run that ended now, is finished, and has no attack before it.

    Returns:
        How each run stands, and each attack on those that are finished.

    Raises:
        StoreError: If another process works in the study's folder, or it can't be written.
        MedflError: If the data can't be prepared or partitioned.
    """
    study, jobs, out = prepared.study, prepared.jobs, prepared.out
    tables = {data: at_most(TABLES_SHARE, write_tables) for data in study.data}
    with only_study(out), study_progress(len(jobs) + len(prepared.attacks)) as (say, show):
        make_data(study, prepared.source, out, prepared.registry, say)
        rows = rows_markdown(study, prepared.registry)

        def after_run(runs: Outcome[Job], job: Job) -> None:
            show(_over(runs))
            tables[job.data](study, runs, job.data, out, prepared.registry, rows=rows)
            if clean and runs.status[job] == "finished" and all(attack.run != job for attack in prepared.attacks):
                clean(job.folder)

        def after_attack(attacked: Outcome[AttackJob], attack: AttackJob) -> None:
            show(_over(runs) + _over(attacked))
            tables[attack.run.data](study, runs, attack.run.data, out, prepared.registry, attacked, rows)
            if clean and all(other.run != attack.run for other in attacked.unfinished()):
                clean(attack.run.folder)

        runs = run_jobs(jobs, say, after_run, start, at_once)
        possible = [attack for attack in prepared.attacks if runs.status[attack.run] == "finished"]
        attacked = run_jobs(possible, say, after_attack, start, at_once, "attack")
        for data in study.data:
            if not study.rows:
                write_people(study, data, prepared.source, out)
                continue
            write_tables(study, runs, data, out, prepared.registry, attacked, rows)
            write_page(study, runs, data, out, say, prepared.registry)
    return Outcome({**runs.status, **attacked.status})


def _over(outcome: Outcome[W]) -> int:
    return sum(status != "not run" for status in outcome.status.values())


def commands(prepared: Prepared) -> list[str]:
    """The command lines of all runs and of the attacks on them, quoted for a shell."""
    everything: list[Job | AttackJob] = [*prepared.jobs, *prepared.attacks]
    return [shlex.join(job.command()) for job in everything]


P = ParamSpec("P")


def at_most(share: float, work: Callable[P, None], clock: Callable[[], float] = time.monotonic) -> Callable[P, None]:
    """Wrap a function so that it takes at most a share of the time, whatever one call costs.

    A call that comes too early does nothing: after a call that took t seconds, the next one that does anything comes
    t * (1 / share - 1) seconds later. The first call is never too early.

    Args:
        share: Of the time, in (0, 1]; with 1 every call counts.
        work: The function.
        clock: Returns the time in seconds.
    """
    due = -math.inf

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal due
        begun = clock()
        if begun < due:
            return
        work(*args, **kwargs)
        ended = clock()
        due = ended + (ended - begun) * (1 / share - 1)

    return call


HEADING = "### Rows"
"""Heading of the table in a study's Markdown page."""


def rows_markdown(study: Study, registry: Registry) -> str:
    """Return the table of a study's rows in Markdown; empty without rows.

    The column ``sites weigh by`` is the method's `weighting` with the row's settings: rows that weigh sites differently
    differ in more than their method.

    Args:
        study: A study whose rows are valid.
        registry: Builds the methods.
    """
    if not study.rows:
        return ""
    head = ["row", "method", "sites weigh by", "settings of the method", "settings of the run"]
    lines = [
        [
            name,
            row.method,
            getattr(registry.make_method(row.method, row.method_args), "weighting", "not stated"),
            _settings(row.method_args),
            _settings(row.settings),
        ]
        for name, row in study.rows.items()
    ]
    return f"{HEADING}\n\n{table_lines([head, *lines])}\n"


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in values.items())
