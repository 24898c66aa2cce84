"""Carrying a study out: a process for each run, in order, several at once if asked; what is finished is left alone.

A bar of runs on a terminal, plain lines elsewhere.
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
from medfl.utils.locks import LOCK, being_written, held
from medfl.utils.progress import progress_bar
from medfl.utils.text import Say
from medfl_studies.processes import Processes

Launch = Callable[[list[str], Path], int]
"""Runs a command line, adds what it says to a log file, and returns its status."""


class Work(Protocol):
    """What a process carries out: a run, or an attack on one."""

    @property
    def title(self) -> str:
        """How to call it."""

    @property
    def folder(self) -> Path:
        """The run folder, in which it writes."""

    @property
    def log(self) -> Path:
        """Where its messages go."""

    def command(self) -> list[str]:
        """The words of its command line."""

    def status(self) -> str:
        """``finished``, ``not run``, or another word of its own."""

    def is_done(self) -> bool:
        """Whether nothing is left to do."""

    def stamp(self) -> None:
        """Note that it is over."""


W = TypeVar("W", bound=Work)


@dataclass
class Outcome(Generic[W]):
    """How the runs of a study, or its attacks, stand.

    Attributes:
        status: Run to ``finished``, ``diverged`` or ``incomplete`` as in its ``summary.json``; ``failed (N)`` if its
            process ended with status N; ``not run``.
    """

    status: dict[W, str]

    def unfinished(self) -> list[W]:
        """Those that are not finished."""
        return [job for job, status in self.status.items() if status != "finished"]


def run_jobs(
    jobs: list[W],
    say: Say,
    after: Callable[[Outcome[W], W], None],
    start: Launch | None = None,
    at_once: int = 1,
    word: str = "run",
) -> Outcome[W]:
    """Run what is not finished, in order; a run that fails leaves the others.

    Args:
        jobs: The runs, or what else there is to do.
        say: Gets a line when a run begins and one when it ends.
        after: Called after each run that ended.
        start: Runs a command line; by default as a process.
        at_once: How many runs are at work at the same time, >= 1.
        word: What one of them is called.

    Raises:
        KeyboardInterrupt: As it comes, after the processes were stopped.
    """
    done = [job for job in jobs if job.is_done()]
    outcome = Outcome({job: "finished" if job in done else "not run" for job in jobs})
    if done:
        say(f"{len(done)} of {len(jobs)} {word}s are finished already")
    waiting = iter([(number, job) for number, job in enumerate(jobs, start=1) if job not in done])
    processes, begun, left = Processes(), time.monotonic(), len(jobs) - len(done)
    running: dict[Future[tuple[str, float]], W] = {}
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while True:
                for number, job in itertools.islice(waiting, at_once - len(running)):
                    say(f"{word} {number} of {len(jobs)}: {job.title}\n  {shlex.join(job.command())}")
                    running[pool.submit(_run, job, start or processes.launch, say, processes.stopped)] = job
                if not running:
                    return outcome
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    outcome.status[job], seconds = future.result()
                    left -= 1
                    each = (time.monotonic() - begun) / (len(jobs) - len(done) - left)
                    rest = f"; about {duration(left * each)} left" if left else ""
                    say(f"  {job.title}: {outcome.status[job]} after {duration(seconds)}{rest}")
                    after(outcome, job)
        except BaseException:
            processes.stop()
            raise
        finally:
            processes.close()


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
        raise StoreError(
            "unwritable_folder",
            f"Could not write to the folder '{out}': {error.strerror}. Give another --out.",
            path=out,
            reason=error.strerror,
        ) from None
    with held(out / LOCK) as alone:
        if not alone:
            raise StoreError(
                "folder_in_use",
                f"Another `medfl study` works in '{out}'. Wait for it, stop it, or give another --out.",
                path=out,
            )
        yield


def _run(job: Work, start: Launch, say: Say, stopped: threading.Event) -> tuple[str, float]:
    """The status of a run after it was started, and the seconds it took."""
    begun = time.monotonic()
    _wait_for_orphan(job, say, stopped)
    code = start(job.command(), job.log)
    status = job.status() if code == 0 else f"failed ({code})"
    if code != 0 and not stopped.is_set():
        say(f"  the last words of {job.title}, from {job.log}:\n{_last_lines(job.log)}")
    if status == "finished":
        job.stamp()
    return status, time.monotonic() - begun


def _wait_for_orphan(job: Work, say: Say, stopped: threading.Event) -> None:
    """A study that was killed may have left its last run at work; let it end, then go on from where it is."""
    announced = False
    while being_written(job.folder) and not stopped.is_set():
        if not announced:
            say("  another process still writes there, perhaps left by a study that was killed; waiting for it")
            announced = True
        stopped.wait(1)


def _last_lines(log: Path, count: int = 8) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4000))
        lines = file.read().decode(errors="replace").splitlines()[-count:]
        return "\n".join(f"    {line}" for line in lines)
    return "    (there is no log)"


@contextmanager
def study_progress(runs: int) -> Iterator[tuple[Say, Callable[[int], None]]]:
    """Show the runs of a study as they end.

    Args:
        runs: How many there are.

    Yields:
        A function that prints a line, and one to call with the number of runs that are over.
    """
    console = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def say(line: str) -> None:
        console.print(line)

    with progress_bar("runs", runs, clock="spent", console=console) as show:
        yield say, show
