"""Launcher of a Slurm cluster: job arrays that run the jobs of a study, and the loop that waits for them.

The study submits a batch for all jobs with equal resources. With a limit on the number of jobs, it submits only as
many as the limit leaves room for, and further ones when jobs have ended: Slurm's own limit holds for each array only.
The result of a job comes from the files of its run; the end of its process comes from a small file in the batch's
folder (`medfl_studies.records.slurm_files`). Slurm only tells whether an element waits, runs, or is gone.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from signal import SIGKILL

from medfl.errors import StoreError
from medfl.utils.formats import count
from medfl.utils.text import Say
from medfl_report.monitor.queued_runs import QueuedRuns
from medfl_studies.launchers.launcher import JobEnd, JobEvent, JobStart, StudyJob
from medfl_studies.launchers.slurm_commands import SlurmCommands, TaskState, resource_options
from medfl_studies.launchers.slurm_job import end_file, newest_state_time
from medfl_studies.records.slurm_files import SlurmBatch, SlurmTask, SlurmTaskEnd

POLL_SECONDS = 10.0
"""Seconds between two questions to the cluster."""

GONE_SECONDS = 60.0
"""Seconds for which a task may be gone without a file of its end: a shared file system shows new files late."""

SETTLE_SECONDS = 25.0
"""Seconds for which the state of a stopped task must last: Slurm may be about to start the task again itself."""

MAX_STOPS = 3
"""Number of times that a task may be stopped in a row without having saved anything."""

MAX_ARRAY = 1000
"""Number of tasks in an array; Slurm's default limit is 1001."""

WAITING_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
"""States of a task that will start."""

RUNNING_STATES = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING")
"""States of a task that has started and not ended."""

STOPPED_STATES = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT")
"""States of a task that Slurm ended for reasons of its own, and does not start again."""

GIVEN_UP_STATES = {
    "CANCELLED": "cancelled",
    "OUT_OF_MEMORY": "out of memory: raise 'memory' in 'resources'",
    "DEADLINE": "deadline of the cluster reached",
}
"""Maps states of a task that is not submitted again to the status of the job."""

ORDINARY_REASONS = ("None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency", "Licenses")
"""Reasons of waiting that pass by themselves; others are shown to the user."""


class Verdict(Enum):
    """What the study does about a task."""

    WAIT = "wait"
    END = "end"
    SUBMIT_AGAIN = "submit again"


@dataclass(frozen=True)
class Judgement:
    """Verdict on a task and its reason.

    Attributes:
        verdict: What the study does.
        reason: For `Verdict.END` the status of a job that was given up, or empty if its process ended by itself; for
            `Verdict.SUBMIT_AGAIN` the reason why it stopped.
        is_by_cluster: Whether the cluster stopped the task without any fault of the task.
    """

    verdict: Verdict
    reason: str = ""
    is_by_cluster: bool = False


def judge(end: SlurmTaskEnd | None, state: TaskState | None, gone_seconds: float) -> Judgement:
    """Return what to do about a task.

    Args:
        end: The task's end, or None if there is no such file.
        state: State of its element, or None if Slurm does not know it.
        gone_seconds: Seconds since the element was first seen to have ended, or to be unknown, without a file.
    """
    if end is not None:
        if end.cause == "no_progress":
            return Judgement(Verdict.END, "time limit without a saved step: raise 'minutes' in 'resources'")
        if end.cause == "time_limit":
            if _is_in_queue(state):  # its request may have been accepted after all
                return Judgement(Verdict.WAIT)
            return Judgement(Verdict.SUBMIT_AGAIN, "time limit", is_by_cluster=True)
        if end.exit_status == -SIGKILL:
            return Judgement(Verdict.SUBMIT_AGAIN, "killed, perhaps out of memory")
        return Judgement(Verdict.END)
    name = "unknown" if state is None else state.name
    if name in WAITING_STATES + RUNNING_STATES:
        return Judgement(Verdict.WAIT)
    if name in GIVEN_UP_STATES:
        return Judgement(Verdict.END, GIVEN_UP_STATES[name])
    if gone_seconds < (SETTLE_SECONDS if name in STOPPED_STATES else GONE_SECONDS):
        return Judgement(Verdict.WAIT)
    if name in STOPPED_STATES:
        return Judgement(Verdict.SUBMIT_AGAIN, name.lower(), is_by_cluster=name == "PREEMPTED")
    return Judgement(Verdict.SUBMIT_AGAIN, f"ended without a result (state {name.lower()})")


@dataclass(eq=False)
class OpenTask:
    """A task that the study waits for.

    Attributes:
        job: Job of the study.
        batch: Folder of the batch.
        index: Index of the task in its batch.
        job_name: Name of the batch's array.
        saved_at: Time of the newest saved file of the run when the task was submitted, in nanoseconds.
        stops: Number of stops in a row without a newer file.
        is_announced: Whether the start of the job was reported.
        is_running: Whether the element ran when it was last asked for.
        gone_since: Monotonic time since when the element has ended, or is unknown, without a file; None if it has not.
        started_at: Monotonic time of the reported start.
        reason: Last reason of waiting that the cluster gave.
    """

    job: StudyJob
    batch: Path
    index: int
    job_name: str
    saved_at: int
    stops: int = 0
    is_announced: bool = False
    is_running: bool = False
    gone_since: float | None = None
    started_at: float = 0.0
    reason: str = ""


class SlurmLauncher:
    """Runs jobs on a Slurm cluster; a `medfl_studies.launchers.launcher.JobLauncher`.

    Args:
        out: Output folder of the study, on a file system that the cluster's nodes share.
        name: Name of the study, part of the jobs' names in Slurm.
        commands: Programs of Slurm.
        at_once: Number of jobs in the queue of the cluster at the same time; None means no limit.
        poll_seconds: Seconds between two questions to the cluster.
        clock: Monotonic clock in seconds.
        wait: Function that sleeps for some seconds.
    """

    def __init__(
        self,
        out: Path,
        name: str,
        commands: SlurmCommands,
        at_once: int | None = None,
        poll_seconds: float = POLL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder, self._name, self._commands, self._at_once = out / "slurm", name, commands, at_once
        self._poll_seconds, self._clock, self._wait = poll_seconds, clock, wait
        self._say: Say = print
        self._open: list[OpenTask] = []
        self._again: list[OpenTask] = []  # stopped
        self._waiting: list[OpenTask] = []  # not submitted yet
        self._events: list[JobEvent] = []
        self._queue: QueuedRuns | None = None
        self._is_unreachable = False

    def check(self, jobs: Sequence[StudyJob]) -> None:
        """Check that the cluster would accept jobs, without submitting one.

        Raises:
            SettingsError: If there is no Slurm, or it refuses a job.
            StoreError: If the cluster's controller does not answer.
        """
        for resources in {tuple(resource_options(job.resources)): job.resources for job in jobs}.values():
            self._commands.check(resources)

    def submit(self, jobs: Sequence[StudyJob], say: Say) -> None:
        """Find the jobs that an earlier call of the command submitted, and submit the others up to the limit.

        Raises:
            SettingsError: If there is no Slurm, or it refuses a job.
            StoreError: If the cluster's controller does not answer, or a job runs with other options or data.
        """
        self._say = say
        earlier = self._find_tasks() if jobs else {}
        fresh = []
        for job in jobs:
            task = earlier.get(str(job.log))
            if task is None or not self._resume(job, *task):
                fresh.append(job)
        if self._open:
            say(f"{count(len(self._open), 'job')} of an earlier command still in the queue of the cluster")
        self._waiting += [OpenTask(job, Path(), 0, "", newest_state_time(job.folder)) for job in fresh]
        self._submit_waiting()

    def poll(self) -> list[JobEvent]:
        """Wait until a job starts or ends; submit stopped and waiting ones."""
        while True:
            events, self._events = self._events, []
            if events or not (self._open or self._again or self._waiting):
                return events
            self._ask()
            if not self._events:
                self._wait(self._poll_seconds)

    def stop(self) -> None:
        """Leave the jobs in the queue, and say how to find or cancel them."""
        if names := sorted({task.job_name for task in self._open}):
            self._say(
                f"{count(len(self._open), 'job')} left in the queue of the cluster: give the same command again to "
                f"collect the results, or cancel with: scancel --name={','.join(names)}"
            )

    def close(self) -> None:
        """Forget the jobs that have not ended."""
        self._open, self._again, self._waiting, self._events = [], [], [], []

    # ---- submission

    def _submit_waiting(self) -> None:
        """Submit as many tasks as the limit leaves room for, those with equal resources in one array."""
        room = len(self._waiting) if self._at_once is None else max(0, self._at_once - len(self._open))
        tasks, self._waiting = self._waiting[:room], self._waiting[room:]
        groups: dict[tuple[str, ...], list[OpenTask]] = {}
        for task in tasks:
            groups.setdefault(tuple(resource_options(task.job.resources)), []).append(task)
        for group in groups.values():
            for first in range(0, len(group), MAX_ARRAY):
                self._submit_batch(group[first : first + MAX_ARRAY])

    def _submit_batch(self, tasks: list[OpenTask]) -> None:
        """Write a batch's file and submit its array.

        The file comes first. If the study is killed between the two, the next call of the command finds the array by
        its name, or sees that there is none.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        number = max((int(path.name) for path in self._batch_folders()), default=0) + 1
        batch = self._folder / f"{number:05}"
        batch.mkdir()
        name = f"medfl-{self._name}-{secrets.token_hex(4)}"
        jobs = [task.job for task in tasks]
        records = tuple(
            SlurmTask(
                title=job.title,
                command=tuple(job.command()),
                log=str(job.log),
                folder=str(job.folder),
                inputs=job.inputs_digest(),
            )
            for job in jobs
        )
        SlurmBatch(job_name=name, tasks=records).write(batch / SlurmBatch.NAME)
        self._say(f"submitting {count(len(tasks), 'job')} to the cluster as '{name}'")
        try:
            self._commands.submit(batch, name, len(tasks), jobs[0].resources)
        except StoreError as error:  # the answer may be lost, and not the array: the next states tell
            self._say(f"warning: {error}")
        for index, task in enumerate(tasks):
            task.batch, task.index, task.job_name = batch, index, name
            task.gone_since, task.reason = None, ""
            task.saved_at = newest_state_time(task.job.folder)
            self._open.append(task)

    # ---- tasks of an earlier call

    def _batch_folders(self) -> list[Path]:
        """Return the folders of all batches, oldest first."""
        return sorted(path for path in self._folder.glob("*") if path.name.isdecimal())

    def _find_tasks(self) -> dict[str, tuple[Path, int, SlurmBatch, TaskState | None]]:
        """Return the newest task of each log, from batches with an array in the queue or a file of an end.

        Other batches are removed.
        """
        batches = {}
        for folder in self._batch_folders():
            if (folder / SlurmBatch.NAME).is_file():
                batches[folder] = SlurmBatch.read(folder / SlurmBatch.NAME)
            else:  # the study was killed before it wrote the file
                shutil.rmtree(folder)
        states = self._commands.states([batch.job_name for batch in batches.values()])
        tasks: dict[str, tuple[Path, int, SlurmBatch, TaskState | None]] = {}
        for folder, batch in batches.items():
            is_used = False
            for index, task in enumerate(batch.tasks):
                state = states.get((batch.job_name, index))
                if _is_in_queue(state) or end_file(folder, index).is_file():
                    tasks[task.log], is_used = (folder, index, batch, state), True
            if not is_used:
                shutil.rmtree(folder)
        return tasks

    def _resume(self, job: StudyJob, batch: Path, index: int, content: SlurmBatch, state: TaskState | None) -> bool:
        """Wait for a task of an earlier call, or take its result. Return False if the job has to be submitted."""
        has_same_inputs = content.tasks[index].inputs == job.inputs_digest()
        path = end_file(batch, index)
        end = SlurmTaskEnd.read(path) if path.is_file() else None
        if end is not None and not (end.cause == "time_limit" and _is_in_queue(state)):
            path.unlink()  # before its use: a result counts once, even if this process is killed now
            if end.exit_status == 0 and has_same_inputs and job.status() != "not run":
                self._events.append(JobEnd(job, 0, end.seconds))
                return True
            return False
        if not has_same_inputs:
            assert state is not None
            raise StoreError(
                "other_job_in_queue",
                f"The cluster's job {state.job} of an earlier command works on '{job.title}' with other "
                f"options or data. Wait for its end, or cancel it: scancel {state.job}",
                job=state.job,
                run=job.title,
            )
        self._open.append(OpenTask(job, batch, index, content.job_name, newest_state_time(job.folder)))
        return True

    # ---- waiting

    def _ask(self) -> None:
        """Ask the cluster for the states of all tasks, and act on them."""
        try:
            states = self._commands.states({task.job_name for task in self._open})
            self._is_unreachable = False
        except StoreError as error:
            if error.code != "unreachable_slurm":
                raise
            if not self._is_unreachable:
                self._say(f"warning: {error} This command keeps asking.")
            self._is_unreachable, states = True, {}
        for task in list(self._open):
            path = end_file(task.batch, task.index)
            end = SlurmTaskEnd.read(path) if path.is_file() else None
            if end is not None or not self._is_unreachable:
                self._act(task, end, states.get((task.job_name, task.index)))
        if not self._is_unreachable:
            self._waiting, self._again = [*self._again, *self._waiting], []
            self._submit_waiting()
        self._write_queue()

    def _act(self, task: OpenTask, end: SlurmTaskEnd | None, state: TaskState | None) -> None:
        """Act on the state of a task."""
        now = self._clock()
        if end is None and _is_in_queue(state):
            task.gone_since = None
            assert state is not None
            self._note_state(task, state)
        elif task.gone_since is None:
            task.gone_since = now
        judgement = judge(end, state, now - (now if task.gone_since is None else task.gone_since))
        if judgement.verdict is Verdict.WAIT:
            return
        self._open.remove(task)
        if end is not None:
            end_file(task.batch, task.index).unlink()
        if judgement.verdict is Verdict.SUBMIT_AGAIN:
            has_progress = newest_state_time(task.job.folder) > task.saved_at
            task.stops = 0 if has_progress or judgement.is_by_cluster else task.stops + 1
            if task.stops < MAX_STOPS:
                self._say(f"  {task.job.title}: {judgement.reason}; submitted again")
                task.is_running = False
                self._again.append(task)
                return
            problem = f"stopped {MAX_STOPS} times without a saved step: {judgement.reason}; Slurm's messages are in "
            judgement = Judgement(Verdict.END, f"{problem}{task.batch}/slurm-{task.index}.out")
        self._announce(task)
        seconds = now - task.started_at if end is None else end.seconds
        status = (1 if judgement.reason else 0) if end is None else end.exit_status
        self._events.append(JobEnd(task.job, status, seconds, judgement.reason))

    def _note_state(self, task: OpenTask, state: TaskState) -> None:
        """Report that a task starts, was stopped by the cluster, continues, or waits for an unusual reason."""
        is_running = state.name in RUNNING_STATES
        if is_running and not task.is_running:
            if task.is_announced:
                self._say(f"  {task.job.title}: continues as the cluster's job {state.job}")
            self._announce(task)
        elif task.is_running and not is_running:
            self._say(f"  {task.job.title}: stopped by the cluster; it is queued again")
        elif not is_running and state.reason not in (*ORDINARY_REASONS, task.reason):
            self._say(f"  {task.job.title}: the cluster's job {state.job} waits ({state.reason})")
        task.is_running, task.reason = is_running, state.reason

    def _announce(self, task: OpenTask) -> None:
        """Report the start of a task once."""
        if not task.is_announced:
            task.is_announced, task.started_at = True, self._clock()
            self._events.append(JobStart(task.job))

    def _write_queue(self) -> None:
        """Write which runs wait and which work, for `medfl monitor`."""
        root = self._folder.parent
        tasks = [*self._again, *self._open, *self._waiting]
        waiting = [task.job.folder for task in tasks if not task.is_running]
        working = [task.job.folder for task in self._open if task.is_running]
        queue = QueuedRuns(
            places={folder.relative_to(root).as_posix(): "queued" for folder in waiting}
            | {folder.relative_to(root).as_posix(): "running" for folder in working}
        )
        if queue != self._queue:
            queue.write(root / QueuedRuns.NAME)
            self._queue = queue


def _is_in_queue(state: TaskState | None) -> bool:
    """Return whether an element waits or runs."""
    return state is not None and state.name in WAITING_STATES + RUNNING_STATES
