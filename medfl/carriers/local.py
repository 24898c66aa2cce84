"""The local carrier: all sites of a federation on this machine.

With one worker sites are trained in this process. With more, that many processes are forked once, each with the
threads of the run; data are shared with them copy-on-write, and messages travel as safetensors blobs through pipes.
A step's largest site starts first; evaluation of the round before fills the gaps. Nothing depends on who finishes
first: replies are folded in name order.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from medfl import errors, wire
from medfl.contract import Meta, Order, Tensors
from medfl.errors import MedflError
from medfl.evaluation import Row, rows_of, score
from medfl.federation import Evaluation
from medfl.filters import decode
from medfl.siteside import Answer, MethodFactory, SiteHost

logger = logging.getLogger(__name__)

Job = tuple[Meta, Tensors]
"""What a worker is asked to do: JSON and tensors."""


class FileReplies:
    """Replies that are read from the sites' step files, one at a time, in name order."""

    def __init__(self, hosts: dict[str, SiteHost], answers: list[Answer], missing: list[str]) -> None:
        self._hosts = hosts
        self._answers = {answer.site: answer for answer in sorted(answers, key=lambda answer: answer.site)}
        self.meta = {site: {k: v for k, v in a.meta.items() if k != "_codec"} for site, a in self._answers.items()}
        self.missing = sorted(missing)

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        for site, answer in self._answers.items():
            tensors = self._hosts[site].store.read(answer.step, "reply/")
            yield site, decode(tensors, answer.meta)[0]

    def __len__(self) -> int:
        return len(self._answers)


class LocalCarrier:
    """Moves messages between a server and sites on one machine.

    Args:
        hosts: The sites that train, by name.
        viewers: Holders of test data only, such as the global test set; scored with the global model.
        make_method: Makes the method anew.
        workers: Processes, >= 1.
        threads: Threads of each process, >= 1.
        absent: Tells whether a site is absent in a step; for tests and simulations of drop-outs.
    """

    def __init__(
        self,
        hosts: dict[str, SiteHost],
        make_method: MethodFactory,
        viewers: dict[str, SiteHost] | None = None,
        workers: int = 1,
        threads: int = 1,
        absent: Callable[[str, int], bool] = lambda site, step: False,
    ) -> None:
        self.hosts, self.viewers = hosts, viewers or {}
        self._make_method, self._absent = make_method, absent
        self._threads = threads
        self._pool = Pool(self._run, workers, threads) if workers > 1 else None

    @property
    def sites(self) -> list[str]:
        """Names of the sites that can be ordered, sorted."""
        return sorted(self.hosts)

    def describe(self) -> dict[str, Meta]:
        """What each site tells about itself."""
        return {name: self.hosts[name].describe() for name in self.sites}

    def newest(self, site: str) -> int:
        """The newest valid step on a site's disk; 0 if none. Damaged newer ones are set aside."""
        return self.hosts[site].store.mend()

    def step(
        self, step: int, round_: int, orders: list[Order], evaluation: Evaluation | None = None
    ) -> tuple[list[Answer], list[str], list[Row]]:
        """Carry out a step's orders, and the evaluation of the round before beside them.

        Returns:
            Answers, names of absent sites, and the rows of the evaluation.
        """
        absent = [order.to for order in orders if self._absent(order.to, step)]
        jobs = self._step_jobs(step, round_, [order for order in orders if order.to not in absent])
        scoring = self._evaluation_jobs(evaluation) if evaluation else []
        results = self._do(jobs + scoring)
        answers = [_answer(result) for result in results[: len(jobs)]]
        rows = [Row(*row) for result in results[len(jobs) :] for row in result["rows"]]
        return sorted(answers, key=lambda answer: answer.site), absent, sorted(rows, key=lambda row: row.site)

    def replies(self, answers: list[Answer], missing: list[str]) -> FileReplies:
        """The replies behind answers that were not refused."""
        return FileReplies(self.hosts, answers, missing)

    def exchange(self, evaluation: Evaluation) -> list[Row]:
        """The global test: each site's model on every site's test data, in ring order."""
        meta = {"job": "exchange", "step": evaluation.step, "round": evaluation.round}
        results = self._do([(meta | {"owner": name}, evaluation.published) for name in self.sites])
        return [Row(*row) for result in results for row in result["rows"]]

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()

    # ---- jobs

    def _step_jobs(self, step: int, round_: int, orders: list[Order]) -> list[Job]:
        digests: dict[int, str] = {}
        jobs = []
        for order in sorted(orders, key=lambda order: (-len(self.hosts[order.to].data.train), order.to)):
            digest = digests.setdefault(id(order.tensors), "") or wire.digest(order.tensors)
            digests[id(order.tensors)] = digest
            meta = {"to": order.to, "op": order.op, "meta": order.meta, "digest": digest}
            jobs.append((meta | {"job": "step", "step": step, "round": round_}, order.tensors))
        return jobs

    def _evaluation_jobs(self, evaluation: Evaluation) -> list[Job]:
        """A few jobs of about equal numbers of images, so that they fill the gaps between workers."""
        everyone = self.hosts | self.viewers
        names = sorted(everyone, key=lambda name: (-len(everyone[name].data.test), name))
        count = 1 if self._pool is None else min(len(names), 3 * len(self._pool))
        chunks: list[list[str]] = [[] for _ in range(count)]
        sizes = [0] * count
        for name in names:
            smallest = sizes.index(min(sizes))
            chunks[smallest].append(name)
            sizes[smallest] += len(everyone[name].data.test) + len(everyone[name].data.val)
        meta = {"job": "evaluate", "step": evaluation.step, "round": evaluation.round}
        return [(meta | {"sites": chunk}, evaluation.published) for chunk in chunks if chunk]

    def _do(self, jobs: list[Job]) -> list[Meta]:
        if self._pool is not None:
            return self._pool.run(jobs)
        return [self._run_here(meta, {name: t.clone() for name, t in tensors.items()}) for meta, tensors in jobs]

    def _run_here(self, meta: Meta, tensors: Tensors) -> Meta:
        try:
            return self._run(json.loads(json.dumps(meta)), tensors)  # copies, as a worker would get
        except MedflError:
            raise
        except Exception as error:
            raise RuntimeError(_describe(error, meta)) from error

    def _run(self, meta: Meta, tensors: Tensors) -> Meta:
        """Do one job, in a worker or here."""
        if meta["job"] == "step":
            order = Order(meta["to"], meta["op"], tensors, meta["meta"])
            host = self.hosts[order.to]
            return vars(host.step(self._make_method, order, meta["step"], meta["round"], meta["digest"]))
        if meta["job"] == "evaluate":
            return {"rows": self._evaluate(meta, tensors)}
        return {"rows": self._exchange(meta, tensors)}

    def _evaluate(self, meta: Meta, published: Tensors) -> list[Row]:
        cache: dict[str, torch.nn.Module] = {}
        rows = []
        for name in sorted(meta["sites"]):
            host = self.hosts.get(name) or self.viewers[name]
            found = host.evaluate(self._make_method(), published, meta["step"], meta["round"], cache)
            rows += [row for row in found if name in self.hosts or row.model == "global"]
        return rows

    def _exchange(self, meta: Meta, published: Tensors) -> list[Row]:
        owner, method = meta["owner"], self._make_method()
        predictors = self.hosts[owner].predictors(method, published, meta["step"], meta["round"], {})
        kind = "personal" if "personal" in predictors else "global"
        start = self.sites.index(owner)
        rows = []
        for name in self.sites[start:] + self.sites[:start]:
            host = self.hosts[name]
            scores = score(predictors[kind], host.data.test, host.task, host.settings)
            rows += rows_of(scores, meta["round"], name, f"{kind}@{owner}", "test", "aggregated")
        return rows


def _who(meta: Meta) -> str:
    """The site that a job is for, for messages."""
    return meta.get("to") or meta.get("owner") or ", ".join(meta.get("sites", []))


def _describe(error: Exception, meta: Meta) -> str:
    return f"{type(error).__name__} in '{meta['job']}' of '{_who(meta)}': {error}"


def _answer(result: Meta) -> Answer:
    return Answer(**(result | {"rows": [Row(*row) for row in result["rows"]]}))


class Pool:
    """Forked processes that do jobs; the first jobs of a list start first.

    Args:
        work: Does one job; runs in the worker.
        size: Number of processes.
        threads: Threads of each.
    """

    def __init__(self, work: Callable[[Meta, Tensors], Meta], size: int, threads: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(size):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, list(self._pipes) + [here], work, threads), daemon=True
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __len__(self) -> int:
        return len(self._pipes)

    def run(self, jobs: list[Job]) -> list[Meta]:
        """Do all jobs; results in the order of the jobs.

        Raises:
            MedflError: The first error of a worker, after the running jobs have ended.
        """
        blobs: dict[int, bytes] = {}
        results: list[Meta] = [{} for _ in jobs]
        waiting = list(range(len(jobs)))
        running: dict[Connection, int] = {}
        error: BaseException | None = None
        while running or (waiting and error is None):
            for pipe in self._pipes:
                if pipe not in running and waiting and error is None:
                    index = waiting.pop(0)
                    running[pipe] = index
                    with contextlib.suppress(OSError):  # the worker is gone; `_receive` says so
                        self._send(pipe, jobs[index], blobs)
            for ready in wait(list(running)):
                pipe = self._pipes[self._pipes.index(ready)]  # type: ignore[arg-type]
                index = running.pop(pipe)
                try:
                    results[index] = _receive(pipe, jobs[index][0])
                except Exception as problem:  # kept until the running jobs have ended, then raised
                    error = error or problem
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
        meta, tensors = job
        if id(tensors) not in blobs:
            blobs[id(tensors)] = wire.encode(tensors, {})
        pipe.send_bytes(json.dumps(meta).encode())
        pipe.send_bytes(blobs[id(tensors)])


def _receive(pipe: Connection, meta: Meta) -> Meta:
    try:
        result: dict[str, Any] = json.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        raise MedflError(
            f"A worker process ended while it did '{meta['job']}' for '{_who(meta)}' (often the machine was "
            "out of memory). Nothing that was saved is lost: give the same command again, perhaps with fewer --workers."
        ) from None
    if "error" in result:
        kind = getattr(errors, result["kind"], MedflError) if result["expected"] else RuntimeError
        problem: Exception = kind(result["error"])
        problem.add_note(f"In a worker process:\n{result['traceback']}")
        raise problem
    return result


def _serve(pipe: Connection, others: list[Connection], work: Callable[[Meta, Tensors], Meta], threads: int) -> None:
    """A worker's life.

    It works in a thread of its own: OpenMP keeps its helper threads by the thread that asked for them, and those of the
    parent's main thread did not survive the fork, so that the first parallel region here would wait for them forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    for other in others:
        other.close()  # a worker must see the end of its own pipe when the parent dies
    thread = threading.Thread(target=_answer_jobs, args=(pipe, work, threads))
    thread.start()
    thread.join()


def _answer_jobs(pipe: Connection, work: Callable[[Meta, Tensors], Meta], threads: int) -> None:
    """Jobs in, results out, until the pipe closes."""
    torch.set_num_threads(threads)
    while True:
        try:
            head = pipe.recv_bytes()
            if not head:
                return
            blob = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            tensors, _ = wire.decode(blob)
            result = work(json.loads(head), tensors)
        except MedflError as error:
            result = {"error": str(error), "kind": type(error).__name__, "expected": True}
            result["traceback"] = traceback.format_exc()
        except Exception as error:
            result = {"error": _describe(error, json.loads(head)), "kind": "", "expected": False}
            result["traceback"] = traceback.format_exc()
        try:
            pipe.send_bytes(json.dumps(result).encode())
        except OSError:
            return
