"""Run the jobs of a study with a launcher, in order, optionally several at once.

Finished jobs are skipped. Progress is a bar on a terminal, and plain lines elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console

from medfl.errors import StoreError
from medfl.utils.formats import duration
from medfl.utils.locks import LOCK_FILE, hold_lock
from medfl.utils.progress import progress_bar
from medfl.utils.text import Say
from medfl_studies.launchers.launcher import JobEnd, JobLauncher, JobStart, StudyJob

JobType = TypeVar("JobType", bound=StudyJob)
"""Type of a study's jobs: runs, attacks, or trials of a search."""


@dataclass
class JobOutcome(Generic[JobType]):
    """Status of each job of a study: runs, or attacks on runs.

    Attributes:
        status: Maps each job to its status. ``finished``, ``diverged`` and ``incomplete`` are read from
            ``summary.json``; ``failed (N)`` means that the process ended with exit status N; ``not run`` means that it
            has not ended. Other statuses are reasons why a launcher gave the job up.
    """

    status: dict[JobType, str]

    def unfinished(self) -> list[JobType]:
        """Return the jobs that are not finished."""
        return [job for job, status in self.status.items() if status != "finished"]


def run_jobs(
    jobs: list[JobType],
    say: Say,
    after: Callable[[JobOutcome[JobType], JobType], None],
    launcher: JobLauncher,
    word: str = "run",
    done: Collection[JobType] | None = None,
) -> JobOutcome[JobType]:
    """Run all jobs that are not finished. If a job fails, the others still run.

    Args:
        jobs: The jobs, in the order in which they start.
        say: Callback that receives a line when a job starts and when it ends.
        after: Callback after each job that ended.
        launcher: Launcher that carries out the jobs.
        word: Word for a job in the printed lines.
        done: The jobs that are finished, if the caller knows them; None asks each job, which reads its inputs.

    Returns:
        The status of each job.

    Raises:
        KeyboardInterrupt: After the launcher stopped, if the user interrupts the study.
    """
    done = [job for job in jobs if job.is_done()] if done is None else done
    outcome = JobOutcome({job: "finished" if job in done else "not run" for job in jobs})
    if done:
        say(f"{len(done)} of {len(jobs)} {word}s are already finished")
    numbers = {id(job): number for number, job in enumerate(jobs, start=1)}
    started, left = time.monotonic(), len(jobs) - len(done)
    try:
        launcher.submit([job for job in jobs if job not in done], say)
        while events := launcher.poll():
            for event in events:
                job = jobs[numbers[id(event.job)] - 1]
                if isinstance(event, JobStart):
                    say(f"{word} {numbers[id(job)]} of {len(jobs)}: {job.title}\n  {shlex.join(job.command())}")
                    continue
                outcome.status[job] = _end_job(event, say)
                left -= 1
                each = (time.monotonic() - started) / (len(jobs) - len(done) - left)
                rest = f"; about {duration(left * each)} left" if left else ""
                say(f"  {job.title}: {outcome.status[job]} after {duration(event.seconds)}{rest}")
                after(outcome, job)
    except BaseException:
        launcher.stop()
        raise
    finally:
        launcher.close()
    return outcome


@contextlib.contextmanager
def lock_study_folder(out: Path) -> Iterator[None]:
    """Lock the folder of a study, because two processes in it would start the same runs.

    Raises:
        StoreError: If another process has locked the folder, or it can't be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / LOCK_FILE).touch()
    except OSError as error:
        raise StoreError(
            "unwritable_folder",
            f"Can't write to the folder '{out}': {error.strerror}. Choose another folder with --out.",
            path=out,
            reason=error.strerror,
        ) from None
    with hold_lock(out / LOCK_FILE) as acquired:
        if not acquired:
            raise StoreError(
                "folder_in_use",
                f"Another `medfl study` is running in '{out}'. Wait for it, stop it, or choose another folder with "
                "--out.",
                path=out,
            )
        yield


def _end_job(end: JobEnd, say: Say) -> str:
    """Return the status of a job that ended. Mark it if it is finished; print the end of its log if it failed."""
    job = end.job
    status = end.problem or (job.status() if end.exit_status == 0 else f"failed ({end.exit_status})")
    if end.problem or end.exit_status != 0:
        say(f"  the last lines of {job.title}, from {job.log}:\n{_last_lines(job.log)}")
    if status == "finished":
        job.mark_done()
    return status


def _last_lines(log: Path, count: int = 8) -> str:
    """Return the last lines of a log file, indented."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4000))
        lines = file.read().decode(errors="replace").splitlines()[-count:]
        return "\n".join(f"    {line}" for line in lines)
    return "    (there is no log)"


@contextmanager
def study_progress(runs: int) -> Iterator[tuple[Say, Callable[[int], None]]]:
    """Show the progress of a study's jobs.

    Args:
        runs: Number of jobs.

    Yields:
        A function that prints a line, and a function that sets the number of ended jobs.
    """
    console = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def say(line: str) -> None:
        console.print(line)

    with progress_bar("runs", runs, clock="spent", console=console) as show:
        yield say, show
