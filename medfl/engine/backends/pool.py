"""Forked processes that do jobs for the local carrier; messages are JSON and safetensors blobs, never pickles."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch

from medfl import errors
from medfl.engine.backends.jobs import JOBS, Job, StepJob
from medfl.errors import MedflError
from medfl.types import Meta, Tensors
from medfl.utils import wire
from medfl.utils.memory import keep_freed_memory, release
from medfl.utils.pulse import Beat, Pulse

Result = tuple[Meta, Tensors]
"""What came of a job: JSON, and tensors."""

Work = Callable[[Job], Result]
"""Does one job."""

Stage = Literal["start", "end"] | Beat
"""Start or end of a job, or a heartbeat in between."""

Tell = Callable[[Job, Stage], None]
"""Callback that receives the stages of jobs."""

AT_ONCE = 0.01
"""Seconds in which a next job comes if there is one."""

BEAT = "beat"
"""Key of a heartbeat among a worker's results."""


def untold(job: Job, stage: Stage) -> None:
    """Discard the stage of a job."""


FORKED_LATE = (
    "This process trained or used a GPU before it was to start workers, and torch can't go on in those. Begin the run "
    "in a process of its own (`medfl run`), use --workers 1, or hide the GPUs: CUDA_VISIBLE_DEVICES=''."
)


class Pool:
    """Forked processes that do jobs; the first jobs of a list start first.

    Args:
        work: Does one job; runs in the worker.
        size: Number of processes.
        threads: Threads of each.
        kinds: The kinds of jobs that there are.
    """

    def __init__(self, work: Work, size: int, threads: int, kinds: Sequence[type[Job]] = JOBS) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        by_name = {kind.name: kind for kind in kinds}
        for _ in range(size):
            here, there = context.Pipe()
            args = (there, list(self._pipes) + [here], work, threads, by_name)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __len__(self) -> int:
        return len(self._pipes)

    def run(self, jobs: Sequence[Job], tell: Tell = untold) -> list[Result]:
        """Do all jobs; results in the order of the jobs.

        Args:
            jobs: What is to be done.
            tell: Receives the stages of the jobs.

        Raises:
            MedflError: The first error of a worker, after the running jobs have ended.
        """
        blobs: dict[int, bytes] = {}
        results: list[Result] = [({}, {}) for _ in jobs]
        waiting = list(range(len(jobs)))
        running: dict[Connection, int] = {}
        error: BaseException | None = None
        while running or (waiting and error is None):
            for pipe in self._pipes:
                if pipe not in running and waiting and error is None:
                    index = waiting.pop(0)
                    running[pipe] = index
                    tell(jobs[index], "start")
                    with contextlib.suppress(OSError):  # the worker is gone; `_receive` says so
                        self._send(pipe, jobs[index], blobs)
            for ready in wait(list(running)):
                pipe = self._pipes[self._pipes.index(ready)]  # type: ignore[arg-type]
                index = running.pop(pipe)
                try:
                    meta, blob = _receive(pipe, jobs[index])
                except Exception as problem:  # kept until the running jobs have ended, then raised
                    error = error or problem
                    continue
                if BEAT in meta:
                    running[pipe] = index
                    tell(jobs[index], Beat(**meta[BEAT]))
                else:
                    results[index] = meta, wire.decode(blob)[0]
                    tell(jobs[index], "end")
        if error is not None:
            raise error
        return results

    def close(self) -> None:
        """End the workers; one that is still training is stopped, its last saved step stays."""
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
    def _send(pipe: Connection, job: Job, blobs: dict[int, bytes]) -> None:
        if id(job.tensors) not in blobs:
            blobs[id(job.tensors)] = wire.encode(job.tensors, {})
        pipe.send_bytes(json.dumps({"job": job.name} | job.facts()).encode())
        pipe.send_bytes(blobs[id(job.tensors)])


def _receive(pipe: Connection, job: Job) -> tuple[Meta, bytes]:
    """What a worker sends: of a job that is done its result, else a heartbeat without tensors."""
    try:
        result: dict[str, Any] = json.loads(pipe.recv_bytes())
        blob = b"" if BEAT in result or "error" in result else pipe.recv_bytes()
    except (EOFError, OSError):
        raise MedflError(
            "dead_worker",
            f"A worker process ended while it did '{job.name}' for '{job.who}' (often the machine was out "
            "of memory). Nothing that was saved is lost: give the same command again, perhaps with fewer --workers.",
            job=job.name,
            who=job.who,
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
    pipe: Connection, others: list[Connection], work: Work, threads: int, kinds: Mapping[str, type[Job]]
) -> None:
    """A worker's life.

    It works in a thread of its own: OpenMP keeps its helper threads by the thread that asked for them, and those of the
    parent's main thread did not survive the fork, so that the first parallel region here would wait for them forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    for other in others:
        other.close()  # a worker must see the end of its own pipe when the parent dies
    thread = threading.Thread(target=_answer_jobs, args=(pipe, work, threads, kinds))
    thread.start()
    thread.join()


def _answer_jobs(pipe: Connection, work: Work, threads: int, kinds: Mapping[str, type[Job]]) -> None:
    """Jobs in, results out, until the pipe closes."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    while True:
        try:
            head = pipe.recv_bytes()
            if not head:
                return
            facts = json.loads(head)
            job = kinds[facts.pop("job")](**facts, tensors={})
            blob = pipe.recv_bytes()
            with Pulse(lambda beat: _send_beat(pipe, beat)):
                meta, tensors = _do(work, job, blob)
            pipe.send_bytes(json.dumps(meta).encode())
            if "error" not in meta:
                pipe.send_bytes(wire.encode(tensors, {}))
        except (EOFError, OSError):
            return
        if isinstance(job, StepJob) or not pipe.poll(AT_ONCE):  # scoring takes again what was given back
            release()


def _send_beat(pipe: Connection, beat: Beat) -> None:
    with contextlib.suppress(OSError):  # the parent is gone; the result won't get through, either
        pipe.send_bytes(json.dumps({BEAT: vars(beat)}).encode())


def _do(work: Work, job: Job, blob: bytes) -> Result:
    """One job with the tensors of a blob; an error becomes a result."""
    result: Meta
    try:
        return work(replace(job, tensors=wire.decode(blob)[0]))
    except MedflError as error:
        result = {"error": str(error), "kind": type(error).__name__, "expected": True, "code": error.code}
        result["fields"] = error.fields
        result["traceback"] = traceback.format_exc()
    except Exception as error:
        late = any(words in str(error) for words in ("CUDA in forked subprocess", "fork-based multiprocessing"))
        result = {"error": FORKED_LATE if late else describe_bug(error, job)}
        result |= {"kind": "SettingsError", "expected": late, "code": "gpu_used_before_workers", "fields": {}}
        result["traceback"] = traceback.format_exc()
    return result, {}


def describe_bug(error: Exception, job: Job) -> str:
    """What a job failed with, and at whom; the job itself is not shown."""
    return f"{type(error).__name__} in '{job.name}' of '{job.who}': {error}"
