"""Run the jobs of a study: one process for each run, in order, optionally several at once.

Finished jobs are skipped. Progress is a bar on a terminal, and plain lines elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rich.console import Console

from medfl.errors import StoreError
from medfl.utils.formats import duration
from medfl.utils.locks import LOCK_FILE, hold_lock, is_being_written
from medfl.utils.progress import progress_bar
from medfl.utils.text import Say
from medfl_studies.processes import RunProcesses

Launcher = Callable[[list[str], Path], int]
"""Type of a function that runs a command line, appends the output to a log file, and returns the exit status."""


class StudyJob(Protocol):
    """Interface of a job that a process carries out: a run, or an attack on a run."""

    @property
    def title(self) -> str:
        """Name of the job in messages."""

    @property
    def folder(self) -> Path:
        """Run folder, to which the job writes."""

    @property
    def log(self) -> Path:
        """Path of the job's log file."""

    def command(self) -> list[str]:
        """Return the words of the job's command line."""

    def status(self) -> str:
        """Return ``finished``, ``not run``, or another status of the job."""

    def is_done(self) -> bool:
        """Return whether the job is finished, so that it is not run again."""

    def mark_done(self) -> None:
        """Write a mark into the job's folder that the job is finished."""


JobType = TypeVar("JobType", bound=StudyJob)
"""Type of a study's jobs: runs, attacks, or trials of a search."""


@dataclass
class JobOutcome(Generic[JobType]):
    """Status of each job of a study: runs, or attacks on runs.

    Attributes:
        status: Maps each job to its status. ``finished``, ``diverged`` and ``incomplete`` are read from
            ``summary.json``; ``failed (N)`` means that the process ended with exit status N; ``not run`` means that it
            has not ended.
    """

    status: dict[JobType, str]

    def unfinished(self) -> list[JobType]:
        """Return the jobs that are not finished."""
        return [job for job, status in self.status.items() if status != "finished"]


def run_jobs(
    jobs: list[JobType],
    say: Say,
    after: Callable[[JobOutcome[JobType], JobType], None],
    start: Launcher | None = None,
    at_once: int = 1,
    word: str = "run",
) -> JobOutcome[JobType]:
    """Run all jobs that are not finished, in order. If a job fails, the others still run.

    Args:
        jobs: The jobs.
        say: Callback that receives a line when a job starts and when it ends.
        after: Callback after each job that ended.
        start: Function that runs a command line; None starts a process.
        at_once: Number of jobs at the same time, >= 1.
        word: Word for a job in the printed lines.

    Returns:
        The status of each job.

    Raises:
        KeyboardInterrupt: After stopping all processes, if the user interrupts the study.
    """
    done = [job for job in jobs if job.is_done()]
    outcome = JobOutcome({job: "finished" if job in done else "not run" for job in jobs})
    if done:
        say(f"{len(done)} of {len(jobs)} {word}s are already finished")
    waiting = iter([(number, job) for number, job in enumerate(jobs, start=1) if job not in done])
    processes, started, left = RunProcesses(), time.monotonic(), len(jobs) - len(done)
    running: dict[Future[tuple[str, float]], JobType] = {}
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while True:
                for number, job in itertools.islice(waiting, at_once - len(running)):
                    say(f"{word} {number} of {len(jobs)}: {job.title}\n  {shlex.join(job.command())}")
                    running[pool.submit(_run_job, job, start or processes.launch, say, processes.stopped)] = job
                if not running:
                    return outcome
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    outcome.status[job], seconds = future.result()
                    left -= 1
                    each = (time.monotonic() - started) / (len(jobs) - len(done) - left)
                    rest = f"; about {duration(left * each)} left" if left else ""
                    say(f"  {job.title}: {outcome.status[job]} after {duration(seconds)}{rest}")
                    after(outcome, job)
        except BaseException:
            processes.stop()
            raise
        finally:
            processes.close()


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


def _run_job(job: StudyJob, start: Launcher, say: Say, stopped: threading.Event) -> tuple[str, float]:
    """Run a job; return its status and the seconds it took. Print the end of its log if it failed."""
    started = time.monotonic()
    _wait_for_orphan(job, say, stopped)
    code = start(job.command(), job.log)
    status = job.status() if code == 0 else f"failed ({code})"
    if code != 0 and not stopped.is_set():
        say(f"  the last lines of {job.title}, from {job.log}:\n{_last_lines(job.log)}")
    if status == "finished":
        job.mark_done()
    return status, time.monotonic() - started


def _wait_for_orphan(job: StudyJob, say: Say, stopped: threading.Event) -> None:
    """Wait until no other process writes into the job's folder.

    Such a process may remain from a study that was killed. Its work is then continued.
    """
    announced = False
    while is_being_written(job.folder) and not stopped.is_set():
        if not announced:
            say("  another process still writes to this run, perhaps from a study that was killed; waiting for it")
            announced = True
        stopped.wait(1)


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
