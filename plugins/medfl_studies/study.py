"""Check and run a study, from its file to its tables.

A study compares methods. Each row of the study is a method with settings; a row has one run for each data set, seed and
fold. A scale is a named variant of the study, for example with fewer rounds.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

from medfl.bundle.bundle_folders import find_bundle
from medfl.plugins import Registry, load_plugins
from medfl.utils.formats import join_words, table_lines
from medfl.utils.text import Say
from medfl_report.monitor.queued_runs import QueuedRuns
from medfl_studies.attacks import AttackJob, attack_jobs
from medfl_studies.checks import check_attacks, check_options, check_rows, find_source
from medfl_studies.jobs import RunJob, expand_study, is_adopted_bundle
from medfl_studies.launchers.launcher import JobLauncher
from medfl_studies.launchers.local_launcher import CommandRunner, LocalLauncher
from medfl_studies.pretrained_weights import find_weights
from medfl_studies.runner import JobOutcome, JobType, lock_study_folder, run_jobs, study_progress
from medfl_studies.schema import FULL_SCALE, Study, slug
from medfl_studies.study_data import check_data, make_data
from medfl_studies.study_reader import read_study
from medfl_studies.study_tables import write_demographics, write_page, write_tables
from medfl_studies.unseen import EvaluationJob, check_unseen, run_without_sites, unseen_jobs

TABLES_SHARE = 0.05
"""Largest share of a study's time for writing tables before its end.

Each table compares all runs and takes longer as runs are added.
"""


@dataclass(frozen=True)
class CheckedStudy:
    """A study that was checked and is ready to run.

    Attributes:
        study: The study at its scale.
        jobs: Runs of the study.
        attacks: Attacks on the runs, carried out when a run is finished.
        registry: Plugins that are loaded for the study.
        source: Folder of the source data, or None.
        out: Output folder of the study.
        note: Warning for the user before the study runs; may be empty.
    """

    study: Study
    jobs: list[RunJob]
    attacks: list[AttackJob]
    registry: Registry
    source: Path | None
    out: Path
    note: str = ""


def load_study(
    file: Path,
    source: Path | None = None,
    out: Path | None = None,
    scale: str = FULL_SCALE,
    seeds: int | list[int] | None = None,
    workers: int | None = None,
    data: Sequence[str] = (),
) -> CheckedStudy:
    """Read and check a study. Nothing is written.

    Args:
        file: Study file.
        source: Folder of the source data; None means the folder in the environment variable ``MEDFL_DATA``.
        out: Output folder; None means `default_output_dir`.
        scale: One of the study's scales, or ``full``.
        seeds: Number of seeds that replaces the study's seeds, >= 1, or a list of seeds.
        workers: Number of processes that train sites, in each run.
        data: Names of the study's data sets to use; empty means all.

    Raises:
        MedflError: If the file, the bundle, a method, an option or the data are not valid.
    """
    source = find_source(source)
    study, note = find_weights(read_study(file, scale, seeds, data), source)
    near = file.parent / study.bundle
    bundle = (near if near.is_dir() else find_bundle(study.bundle)).absolute()
    place = (out or default_output_dir(study, scale)).absolute()
    registry = load_plugins(study.settings.get("plugins", ()), study.settings.get("disabled_plugins", ()))
    check_rows(study, registry)
    check_attacks(study, registry)
    check_data(study, source, place, registry, is_adopted_bundle(bundle))
    check_unseen(study, registry, is_adopted_bundle(bundle))
    jobs = expand_study(study, bundle, source, place, workers)
    if jobs:
        check_options(bundle, jobs)
    return CheckedStudy(study, jobs, attack_jobs(study, jobs, registry), registry, source, place, note)


def default_output_dir(study: Study, scale: str) -> Path:
    """Return the default output folder, ``runs/<name>`` or ``runs/<name>-<scale>``.

    Each scale has its own folder, because scales have different runs.
    """
    return Path("runs") / (study.name if scale == FULL_SCALE else f"{study.name}-{slug(scale)}")


def run_study(
    prepared: CheckedStudy,
    run: CommandRunner | None = None,
    at_once: int = 1,
    clean: Callable[[Path], object] | None = None,
    launcher: JobLauncher | None = None,
) -> JobOutcome[RunJob | AttackJob | EvaluationJob]:
    """Run a study to its end. A repeated call continues the study and leaves finished runs untouched.

    Tables are written after a run, unless writing them would take more than `TABLES_SHARE` of the time, and at the end.

    Args:
        prepared: The study, from `load_study`.
        run: Function that runs a command line on this machine; None starts a process.
        at_once: Number of runs at the same time on this machine, >= 1.
        clean: Callback that receives the folder of each run that is finished and has no pending attack.
        launcher: Launcher that carries out the jobs; None means this machine, with `run` and `at_once`.

    Returns:
        The status of each run, of each attack on a finished run, and of each evaluation at a site that a run left out.

    Raises:
        StoreError: If another process works in the study's folder, or the folder can't be written.
        MedflError: If the data can't be prepared or partitioned.
    """
    study, jobs, out = prepared.study, prepared.jobs, prepared.out
    launcher = launcher or LocalLauncher(run, at_once)
    tables = {data: limit_time_share(TABLES_SHARE, write_tables) for data in study.data}
    with lock_study_folder(out), study_progress(len(jobs) + len(prepared.attacks)) as (say, show):
        (out / QueuedRuns.NAME).unlink(missing_ok=True)  # of a command that was killed
        make_data(study, prepared.source, out, prepared.registry, say)
        rows = rows_markdown(study, prepared.registry)
        without = unseen_jobs(study, jobs, out)

        def after_run(runs: JobOutcome[RunJob], job: RunJob) -> None:
            show(_count_ended(runs))
            tables[job.data](study, runs, job.data, out, prepared.registry, rows=rows)
            if clean and runs.status[job] == "finished" and all(attack.run != job for attack in prepared.attacks):
                clean(job.folder)

        def after_attack(attacked: JobOutcome[AttackJob], attack: AttackJob) -> None:
            show(_count_ended(runs) + _count_ended(attacked))
            tables[attack.run.data](study, runs, attack.run.data, out, prepared.registry, attacked, rows)
            if clean and all(other.run != attack.run for other in attacked.unfinished()):
                clean(attack.run.folder)

        runs = run_jobs(jobs, say, after_run, launcher, done=_finished_runs(jobs, say))
        possible = [attack for attack in prepared.attacks if runs.status[attack.run] == "finished"]
        attacked = run_jobs(possible, say, after_attack, launcher, "attack")
        unseen = run_without_sites(study, jobs, without, say, launcher)
        for data in study.data:
            if not study.rows:
                write_demographics(study, data, prepared.source, out)
                continue
            write_tables(study, runs, data, out, prepared.registry, attacked, rows, unseen)
            write_page(study, runs, data, out, say, prepared.registry, unseen)
    return JobOutcome({**runs.status, **attacked.status, **unseen.runs.status, **unseen.evaluations.status})


def _finished_runs(jobs: Sequence[RunJob], say: Say) -> list[RunJob]:
    """Return the runs that are finished as the study defines them; print a warning for each other finished run."""
    finished = []
    for job in jobs:
        changed = job.changed_inputs()
        if changed:
            say(
                f"warning: {job.title}: the finished run in '{job.folder}' differs from the study in: "
                f"{join_words(changed)}. To keep it, choose another --out; to run it again, delete the folder."
            )
        elif changed is not None:
            finished.append(job)
    return finished


def _count_ended(outcome: JobOutcome[JobType]) -> int:
    """Count the jobs that have ended, with success or not."""
    return sum(status != "not run" for status in outcome.status.values())


def list_commands(prepared: CheckedStudy) -> list[str]:
    """Return the command lines of all runs and attacks, quoted for a shell."""
    all_jobs: list[RunJob | AttackJob] = [*prepared.jobs, *prepared.attacks]
    return [shlex.join(job.command()) for job in all_jobs]


P = ParamSpec("P")
"""Parameters of a function that `limit_time_share` wraps."""


def limit_time_share(
    share: float, work: Callable[P, None], clock: Callable[[], float] = time.monotonic
) -> Callable[P, None]:
    """Wrap a function so that its calls take at most a share of the total time.

    A call that comes too early does nothing. After a call that took t seconds, calls do nothing for
    t * (1 / share - 1) seconds. The first call always runs the function.

    Args:
        share: Share of the time, in (0, 1]; with 1 every call runs the function.
        work: The function.
        clock: Returns the time in seconds.
    """
    due = -math.inf

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal due
        started = clock()
        if started < due:
            return
        work(*args, **kwargs)
        ended = clock()
        due = ended + (ended - started) * (1 / share - 1)

    return call


ROWS_HEADING = "### Rows"
"""Heading of the table of rows in a study's Markdown page."""


def rows_markdown(study: Study, registry: Registry) -> str:
    """Return the table of a study's rows in Markdown; empty without rows.

    The column ``site weights`` shows how the method weights the sites when it averages (`weighting`), because rows with
    different weights differ in more than the method.

    Args:
        study: A study whose rows are valid.
        registry: Registry that builds the methods.
    """
    if not study.rows:
        return ""
    head = ["row", "method", "site weights", "settings of the method", "settings of the run"]
    lines = [
        [
            name,
            row.method,
            getattr(registry.make_method(row.method, row.method_args), "weighting", "not stated"),
            _format_settings(row.method_args),
            _format_settings(row.settings),
        ]
        for name, row in study.rows.items()
    ]
    return f"{ROWS_HEADING}\n\n{table_lines([head, *lines])}\n"


def _format_settings(values: Mapping[str, Any]) -> str:
    """Format settings as text."""
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in values.items())
