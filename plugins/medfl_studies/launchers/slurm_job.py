"""Program that an element of a Slurm job array executes: it runs one task of a study.

Slurm ends jobs for its own reasons. A task that Slurm ends because another job needs the node, or because the node
fails, leaves no file; Slurm starts it again. Shortly before the time limit Slurm sends `TIME_LIMIT_SIGNAL`; the program
then ends the task and queues the job again, unless the task has saved nothing since the job started. A run continues
after its last saved step with the same bits. The program executes the task's command line and unpickles nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from medfl_studies.records.slurm_files import SlurmBatch, SlurmTask, SlurmTaskEnd

TIME_LIMIT_SIGNAL = signal.SIGUSR1
"""Signal that Slurm sends to this program shortly before the time limit."""

REQUEUE_SECONDS = 60.0
"""Seconds that ``scontrol requeue`` may take."""

INDEX_VARIABLE = "SLURM_ARRAY_TASK_ID"
"""Environment variable with the index of the element."""

JOB_VARIABLE = "SLURM_JOB_ID"
"""Environment variable with the number of the element's job."""


def newest_state_time(run_folder: Path) -> int:
    """Return the time of the newest file that a run saved, in nanoseconds since 1970; 0 if there is none.

    Args:
        run_folder: Folder of the run, whose subfolder ``state`` has the saved steps.
    """
    newest = 0
    for folder, _, names in os.walk(run_folder / "state"):
        for name in names:
            try:
                newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime_ns)
            except FileNotFoundError:  # the run removes old steps
                continue
    return newest


def end_file(batch: Path, index: int) -> Path:
    """Return the path of the file with the end of a task.

    Args:
        batch: Folder of the batch.
        index: Index of the task.
    """
    return batch / SlurmTaskEnd.NAME.format(index=index)


class TaskProcess:
    """The process of a task, and the signals that Slurm sends while it runs.

    Args:
        task: The task.
    """

    def __init__(self, task: SlurmTask) -> None:
        self._task = task
        self._process: subprocess.Popen[bytes] | None = None
        self.reached_time_limit = False
        self.was_ended = False

    def run(self) -> int:
        """Run the task's command line, append its output to the log, and return the exit status."""
        signal.signal(TIME_LIMIT_SIGNAL, self._end_for_time_limit)
        signal.signal(signal.SIGTERM, self._end)
        log = Path(self._task.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {shlex.join(self._task.command)}\n")
            file.flush()
            self._process = subprocess.Popen(self._task.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
            if self.was_ended:  # a signal arrived before the process existed
                self._process.terminate()
            return self._process.wait()

    def _end_for_time_limit(self, *_: object) -> None:
        """End the process, because the time limit is near."""
        self.reached_time_limit = True
        self._end()

    def _end(self, *_: object) -> None:
        """End the process, because Slurm ends the job."""
        self.was_ended = True
        if self._process is not None:
            self._process.terminate()


def run_task(batch: Path, index: int) -> int:
    """Run a task, and write its end unless Slurm starts the job again. Return the exit status of the job.

    Args:
        batch: Folder of the batch.
        index: Index of the task.
    """
    started, task = time.monotonic(), SlurmBatch.read(batch / SlurmBatch.NAME).tasks[index]
    end_file(batch, index).unlink(missing_ok=True)  # Slurm started the job again although it had ended
    before = newest_state_time(Path(task.folder))
    process = TaskProcess(task)
    status = process.run()

    def write_end(cause: str) -> None:
        values = {"cause": cause, "exit_status": status, "seconds": time.monotonic() - started}
        SlurmTaskEnd.model_validate(values).write(end_file(batch, index))

    is_ended_from_outside = status == -signal.SIGTERM or (status < 0 and process.was_ended)
    if not is_ended_from_outside:
        write_end("exit")
    elif process.reached_time_limit and newest_state_time(Path(task.folder)) == before:
        write_end("no_progress")
    elif process.reached_time_limit and not _requeue():
        write_end("time_limit")
    return status if status >= 0 else 128 - status


def _requeue() -> bool:
    """Queue this job again. Return whether Slurm accepted it.

    Slurm then ends all processes of the job, often ``scontrol`` before it has read the answer.
    """
    command = ["scontrol", "requeue", os.environ[JOB_VARIABLE]]
    try:
        return subprocess.run(command, timeout=REQUEUE_SECONDS).returncode <= 0
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{shlex.join(command)}: {error}", file=sys.stderr)  # noqa: T201 - the job's own output file
        return False


if __name__ == "__main__":
    sys.exit(run_task(Path(sys.argv[1]), int(os.environ[INDEX_VARIABLE])))
