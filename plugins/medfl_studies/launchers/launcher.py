"""Interface between a study and the launcher that carries out its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from medfl.utils.text import Say
from medfl_studies.launchers.resources import Resources


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
        """Path of the job's log file. No two jobs of a study have the same."""

    @property
    def resources(self) -> Resources:
        """Resources of the job on a cluster."""

    def command(self) -> list[str]:
        """Return the words of the job's command line."""

    def inputs_digest(self) -> str:
        """Return a digest of everything that determines the job's result."""

    def status(self) -> str:
        """Return ``finished``, ``not run``, or another status of the job."""

    def is_done(self) -> bool:
        """Return whether the job is finished, so that it is not run again."""

    def mark_done(self) -> None:
        """Write a mark into the job's folder that the job is finished."""


@dataclass(frozen=True)
class JobStart:
    """Event: a job starts.

    Attributes:
        job: The job.
    """

    job: StudyJob


@dataclass(frozen=True)
class JobEnd:
    """Event: a job has ended.

    Attributes:
        job: The job.
        exit_status: Exit status of its process; negative if a signal ended it.
        seconds: Seconds that it took.
        problem: Reason why the launcher gave the job up; empty if its process ended by itself.
    """

    job: StudyJob
    exit_status: int
    seconds: float
    problem: str = ""


JobEvent = JobStart | JobEnd
"""What a launcher reports about a job."""


class JobLauncher(Protocol):
    """Carries out jobs. `submit` and then `poll` until nothing is left; `close` in every case."""

    def submit(self, jobs: Sequence[StudyJob], say: Say) -> None:
        """Accept jobs, which start in their order as soon as there is room for them.

        Args:
            jobs: Jobs that are not done.
            say: Callback that receives lines for the user.
        """

    def poll(self) -> list[JobEvent]:
        """Wait until a job starts or ends, and return what happened; empty when all jobs have ended."""

    def stop(self) -> None:
        """Stop waiting for the jobs, because the user interrupted the study.

        A launcher ends jobs that can't outlive the study, and leaves the others to the next call of the command.
        """

    def close(self) -> None:
        """Release what `submit` acquired. Another `submit` may follow."""
