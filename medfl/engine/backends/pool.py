"""Pool of forked worker processes that run jobs of the local backend, each on its own device.

A job is a unit of work, such as one site's request or a part of an evaluation (`medfl.engine.backends.jobs`).

Messages between the processes are JSON and safetensors blobs, never pickles. Workers are forks, so that they share
data, networks and plugins of the parent without copies. CUDA allows that as long as the parent has not used it
(`medfl.training.devices`). A worker initialises its GPU before its first job.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch

from medfl import errors
from medfl.engine.backends.jobs import JOB_KINDS, BackendJob, StepJob
from medfl.errors import MedflError
from medfl.training.devices import gpu_used_before_workers, is_late_fork, use_device
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.heartbeat import HeartbeatSender, HeartbeatSignal, HeartbeatThread
from medfl.utils.memory import keep_freed_memory, release_memory

JobResult = tuple[Meta, Tensors]
"""Result of a job: JSON metadata and tensors."""

RunJob = Callable[[BackendJob], JobResult]
"""Type of a function that runs one job and returns its result."""

Stage = Literal["start", "end"] | HeartbeatSignal
"""Stage of a job: ``start``, ``end``, or a heartbeat (sign of life of the worker) in between."""

NoteStage = Callable[[BackendJob, Stage], None]
"""Type of a callback ``note_stage(job, stage)``, which is called when a job reaches a stage."""

NEXT_JOB_SECONDS = 0.01
"""Seconds that a worker waits for its next job before it gives freed memory back to the system."""

HEARTBEAT = "beat"
"""Metadata key that marks a message from a worker as a heartbeat."""


def discard_stage(job: BackendJob, stage: Stage) -> None:
    """Discard the stage of a job: a callback for runs whose progress no one follows."""


class WorkerPool:
    """Forked processes that run jobs.

    Args:
        run_job: Function that runs one job, in a worker.
        devices: Device of each process, ``cpu`` or ``cuda:N``.
        threads: Number of threads of each process.
        kinds: Classes of the jobs that the workers can receive.
    """

    def __init__(
        self, run_job: RunJob, devices: Sequence[str], threads: int, kinds: Sequence[type[BackendJob]] = JOB_KINDS
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        by_name = {kind.name: kind for kind in kinds}
        for device in devices:
            here, there = context.Pipe()
            args = (there, list(self._pipes) + [here], partial(_run_on_device, device, run_job), threads, by_name)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __len__(self) -> int:
        return len(self._pipes)

    def run(self, jobs: Sequence[BackendJob], note_stage: NoteStage = discard_stage) -> list[JobResult]:
        """Run all jobs, and return their results in the order of the jobs.

        Args:
            jobs: The jobs. They start in this order.
            note_stage: Callback that receives the stages of the jobs.

        Raises:
            MedflError: The first error of a worker, after the running jobs have ended.
        """
        blobs: dict[int, bytes] = {}
        results: list[JobResult] = [({}, {}) for _ in jobs]
        waiting = list(range(len(jobs)))
        running: dict[Connection, int] = {}
        error: BaseException | None = None
        while running or (waiting and error is None):
            for pipe in self._pipes:
                if pipe not in running and waiting and error is None:
                    index = waiting.pop(0)
                    running[pipe] = index
                    note_stage(jobs[index], "start")
                    with contextlib.suppress(OSError):  # the worker is dead; `_receive` raises the error
                        self._send(pipe, jobs[index], blobs)
            for ready in wait(list(running)):
                pipe = self._pipes[self._pipes.index(ready)]  # type: ignore[arg-type]
                index = running.pop(pipe)
                try:
                    meta, blob = _receive(pipe, jobs[index])
                except Exception as problem:  # kept until the running jobs have ended, then raised
                    error = error or problem
                    continue
                if HEARTBEAT in meta:
                    running[pipe] = index
                    note_stage(jobs[index], HeartbeatSignal(**meta[HEARTBEAT]))
                else:
                    results[index] = meta, wire.decode(blob)[0]
                    note_stage(jobs[index], "end")
        if error is not None:
            raise error
        return results

    def close(self) -> None:
        """Stop the workers. A worker that is still training is terminated; its last saved step stays valid."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send_bytes(b"")
            pipe.close()
        for process in self._processes:
            process.join(timeout=0.2)
            if process.is_alive():
                process.terminate()
                process.join()

    @staticmethod
    def _send(pipe: Connection, job: BackendJob, blobs: dict[int, bytes]) -> None:
        """Send a job to a worker. Jobs that share their tensors share the encoded blob, which is added to `blobs`."""
        if id(job.tensors) not in blobs:
            blobs[id(job.tensors)] = wire.encode(job.tensors, {}, "crc32")
        pipe.send_bytes(json.dumps({"job": job.name} | job.fields_to_json()).encode())
        pipe.send_bytes(blobs[id(job.tensors)])


def _receive(pipe: Connection, job: BackendJob) -> tuple[Meta, bytes]:
    """Read a worker's message: the result of its job with a blob of tensors, or a heartbeat without tensors.

    Raises:
        MedflError: If the worker reports an error, or if it is dead.
    """
    try:
        result: dict[str, Any] = json.loads(pipe.recv_bytes())
        blob = b"" if HEARTBEAT in result or "error" in result else pipe.recv_bytes()
    except (EOFError, OSError):
        raise MedflError(
            "dead_worker",
            f"A worker process ended while it ran '{job.name}' for '{job.participants_text}' (often because the "
            "machine was out of memory). All saved steps are valid: run the same command again, perhaps with fewer "
            "--workers.",
            job=job.name,
            who=job.participants_text,
        ) from None
    if "error" in result:
        problem: Exception = RuntimeError(result["error"])
        if result["expected"]:
            kind: type[MedflError] = getattr(errors, result["kind"], MedflError)
            problem = kind(result["code"], result["error"], **result["fields"])
        problem.add_note(f"In a worker process:\n{result['traceback']}")
        raise problem
    return result, blob


def _serve(
    pipe: Connection,
    others: list[Connection],
    run_job: RunJob,
    threads: int,
    kinds: Mapping[str, type[BackendJob]],
) -> None:
    """Run the main function of a worker, until its pipe closes.

    The jobs run in a new thread. OpenMP keeps its helper threads for each thread that starts a parallel region, and the
    helpers of the parent's main thread do not survive the fork. The first parallel region in the main thread would wait
    for them forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops its workers
    for other in others:
        other.close()  # else the worker's own pipe would stay open when the parent dies
    thread = threading.Thread(target=_answer_jobs, args=(pipe, run_job, threads, kinds))
    thread.start()
    thread.join()


def _answer_jobs(pipe: Connection, run_job: RunJob, threads: int, kinds: Mapping[str, type[BackendJob]]) -> None:
    """Read jobs from a pipe, run them and write their results, until the pipe closes."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    with HeartbeatThread() as heartbeats:
        while True:
            try:
                head = pipe.recv_bytes()
                if not head:
                    return
                fields = json.loads(head)
                job = kinds[fields.pop("job")](**fields, tensors={})
                blob = pipe.recv_bytes()
                with HeartbeatSender(lambda beat: _send_heartbeat(pipe, beat), heartbeats):
                    meta, tensors = _run_catching_errors(run_job, job, blob)
                pipe.send_bytes(json.dumps(meta).encode())
                if "error" not in meta:
                    pipe.send_bytes(wire.encode(tensors, {}, "crc32"))
            except (EOFError, OSError):
                return
            if isinstance(job, StepJob) or not pipe.poll(NEXT_JOB_SECONDS):  # a scoring job would reuse the memory
                release_memory()


def _run_on_device(device: str, run_job: RunJob, job: BackendJob) -> JobResult:
    """Run a job in a worker, with the worker's GPU as the current device of its thread."""
    use_device(device)
    return run_job(job)


def _send_heartbeat(pipe: Connection, beat: HeartbeatSignal) -> None:
    with contextlib.suppress(OSError):  # the parent is dead
        pipe.send_bytes(json.dumps({HEARTBEAT: vars(beat)}).encode())


def _run_catching_errors(run_job: RunJob, job: BackendJob, blob: bytes) -> JobResult:
    """Run a job with the tensors of a blob. Return an error as a result, so that it can be sent to the parent.

    The keys of such a result are ``error``, ``kind``, ``expected``, ``code``, ``fields`` and ``traceback``.
    """
    try:
        return run_job(replace(job, tensors=wire.decode(blob)[0]))
    except Exception as error:
        known = gpu_used_before_workers() if is_late_fork(error) else error
        result: Meta = {"error": describe_bug(error, job), "expected": False}
        if isinstance(known, MedflError):
            result = {"error": str(known), "expected": True, "kind": type(known).__name__}
            result |= {"code": known.code, "fields": known.fields}
        return result | {"traceback": traceback.format_exc()}, {}


def describe_bug(error: Exception, job: BackendJob) -> str:
    """Return a message about an unexpected error in a job.

    The message names the participants of the job and nothing of the job's content.
    """
    return f"{type(error).__name__} in '{job.name}' of '{job.participants_text}': {error}"
