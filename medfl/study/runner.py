"""Carrying a study out: one process for each run, in order; what is finished is left alone."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from medfl.errors import StoreError
from medfl.locks import LOCK, being_written, held
from medfl.report.formats import duration
from medfl.study.cohorts import Say
from medfl.study.jobs import Job

Launch = Callable[[list[str], Path], int]
"""Runs a command line, adds what it says to a log file, and returns its status."""

PATIENCE = 10.0
"""Seconds that an interrupted run gets to end by itself."""


@dataclass
class Outcome:
    """How the runs of a study stand.

    Attributes:
        status: Job to ``finished``, ``diverged`` or ``incomplete`` as in its ``summary.json``; ``failed (N)`` if its
            process ended with status N; ``not run``.
    """

    status: dict[Job, str]

    def unfinished(self) -> list[Job]:
        """The runs that are not finished."""
        return [job for job, status in self.status.items() if status != "finished"]


def run_jobs(jobs: list[Job], say: Say, after: Callable[[Outcome, Job], None], start: Launch | None = None) -> Outcome:
    """Run what is not finished, one after another; a run that fails leaves the others.

    Args:
        jobs: The runs.
        say: Gets a line when a run begins and one when it ends.
        after: Called after each run that ended.
        start: Runs a command line; `launch` by default.
    """
    done = [job for job in jobs if job.is_done()]
    outcome = Outcome({job: "finished" if job in done else "not run" for job in jobs})
    if done:
        say(f"{len(done)} of {len(jobs)} runs are finished already")
    seconds: list[float] = []
    for number, job in enumerate(jobs, start=1):
        if job in done:
            continue
        say(f"run {number} of {len(jobs)}: {job.title}\n  {shlex.join(job.command())}")
        begun = time.monotonic()
        outcome.status[job] = _run(job, start or launch, say)
        seconds.append(time.monotonic() - begun)
        left = sum(status == "not run" for status in outcome.status.values())
        rest = f"; about {duration(left * sum(seconds) / len(seconds))} left" if left else ""
        say(f"  {outcome.status[job]} after {duration(seconds[-1])}{rest}")
        after(outcome, job)
    return outcome


def launch(command: list[str], log: Path) -> int:
    """Run a command line to its end.

    Args:
        command: Its words.
        log: Gets what it prints.

    Raises:
        KeyboardInterrupt: As it comes, after the process was stopped. It saves each step, so nothing is lost.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n")
        file.flush()
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            return process.wait()
        except BaseException:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.terminate()
                process.wait(PATIENCE)
            process.kill()
            process.wait()
            raise


@contextlib.contextmanager
def only_study(out: Path) -> Iterator[None]:
    """Hold the folder of a study: two at once would start the same runs.

    Raises:
        StoreError: If another process holds it, or it can't be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / LOCK).touch()
    except OSError as error:
        raise StoreError(f"Could not write to the folder '{out}': {error.strerror}. Give another --out.") from None
    with held(out / LOCK) as alone:
        if not alone:
            raise StoreError(f"Another `medfl study` works in '{out}'. Wait for it, stop it, or give another --out.")
        yield


def _run(job: Job, start: Launch, say: Say) -> str:
    """The status of a run after it was started."""
    _wait_for_orphan(job, say)
    code = start(job.command(), job.log)
    if code != 0:
        say(f"  its last words, from {job.log}:\n{_last_lines(job.log)}")
        return f"failed ({code})"
    status = job.status()
    if status == "finished":
        job.stamp()
    return status


def _wait_for_orphan(job: Job, say: Say) -> None:
    """A study that was killed may have left its last run at work; let it end, then go on from where it is."""
    told = False
    while being_written(job.folder):
        if not told:
            say("  another process still writes there, perhaps left by a study that was killed; waiting for it")
            told = True
        time.sleep(1)


def _last_lines(log: Path, count: int = 8) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4000))
        lines = file.read().decode(errors="replace").splitlines()[-count:]
        return "\n".join(f"    {line}" for line in lines)
    return "    (there is no log)"
