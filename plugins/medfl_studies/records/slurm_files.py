"""Files between a study and its jobs on a Slurm cluster, in the folder ``slurm`` of the study.

A batch is one job array of Slurm; each of its elements runs one task, which is a command line of the study. The study
writes a batch's file before it submits the batch; an element writes a task's end.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from medfl.records.record import FileRecord, Record


class SlurmTask(Record):
    """One command line of a study.

    Attributes:
        title: Name of the job in messages.
        command: Words of the command line.
        log: Path of the file that the output is appended to. It identifies the job in its study.
        folder: Run folder.
        inputs: Digest of everything that determines the result.
    """

    title: str
    command: tuple[str, ...]
    log: str
    folder: str
    inputs: str


class SlurmBatch(FileRecord):
    """Tasks of one job array. The file is in the batch's own folder.

    Attributes:
        job_name: Name of the array in Slurm. No other array has it, so a study that was killed finds its jobs by it.
        tasks: Tasks in the order of the array's indices.
    """

    NAME: ClassVar[str] = "batch.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Cancel the study's jobs with scancel, and remove the folder of the file."
    """Advice for a user whose file is damaged; part of the error message."""

    job_name: str
    tasks: tuple[SlurmTask, ...]


class SlurmTaskEnd(FileRecord):
    """The end of a task that Slurm does not start again by itself.

    Attributes:
        cause: ``exit`` if the process ended by itself or was killed; ``time_limit`` if the task reached its time limit
            and has to be submitted again; ``no_progress`` if it reached its time limit without a saved step.
        exit_status: Exit status of the process; negative if a signal ended it.
        seconds: Seconds since the element started.
    """

    NAME: ClassVar[str] = "end-{index}.json"
    """Pattern of the file's name in the batch's folder, with the index of the element."""
    REPAIR: ClassVar[str] = "Remove it; the study then submits the job again."
    """Advice for a user whose file is damaged; part of the error message."""

    cause: Literal["exit", "time_limit", "no_progress"]
    exit_status: int
    seconds: float
