"""Launcher of the processes on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from medfl.utils.locks import is_being_written
from medfl.utils.text import Say
from medfl_studies.launchers.launcher import JobEnd, JobEvent, JobStart, StudyJob
from medfl_studies.processes import RunProcesses

CommandRunner = Callable[[list[str], Path], int]
"""Type of a function that runs a command line, appends the output to a log file, and returns the exit status."""


class LocalLauncher:
    """Runs each job as a process of this machine; a `medfl_studies.launchers.launcher.JobLauncher`.

    Args:
        run: Function that runs a command line; None starts a process.
        at_once: Number of jobs at the same time, >= 1.
    """

    def __init__(self, run: CommandRunner | None = None, at_once: int = 1) -> None:
        self._processes = RunProcesses()
        self._run = run or self._processes.launch
        self._at_once = at_once
        self._say: Say = print
        self._waiting: list[StudyJob] = []
        self._starting: list[StudyJob] = []
        self._running: dict[Future[JobEnd], StudyJob] = {}
        self._threads: ThreadPoolExecutor | None = None

    def submit(self, jobs: Sequence[StudyJob], say: Say) -> None:
        """Accept jobs; the first of them start when `poll` is called."""
        self._waiting += jobs
        self._say = say

    def poll(self) -> list[JobEvent]:
        """Announce jobs that have room and start them at the next call, or wait until a job ends."""
        self._threads = self._threads or ThreadPoolExecutor(self._at_once)
        for job in self._starting:
            end = self._threads.submit(_carry_out, job, self._run, self._say, self._processes.stopped)
            self._running[end] = job
        room = self._at_once - len(self._running)
        self._starting, self._waiting = self._waiting[:room], self._waiting[room:]
        if self._starting:
            return [JobStart(job) for job in self._starting]
        if not self._running:
            return []
        ended = wait(self._running, return_when=FIRST_COMPLETED).done
        for future in ended:
            del self._running[future]
        return [future.result() for future in ended]

    def stop(self) -> None:
        """End all processes. Runs save every step, so no finished step is lost."""
        self._processes.stop()

    def close(self) -> None:
        """End the server process and the threads."""
        self._processes.close()
        if self._threads is not None:
            self._threads.shutdown()
        self._threads = None


def _carry_out(job: StudyJob, run: CommandRunner, say: Say, stopped: threading.Event) -> JobEnd:
    """Run a job to its end."""
    started = time.monotonic()
    _wait_for_orphan(job, say, stopped)
    return JobEnd(job, run(job.command(), job.log), time.monotonic() - started)


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
