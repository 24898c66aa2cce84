"""Test the local backend: order of the results, isolation of the sites, and repeated requests."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from refusals import refused
from toys import SIZES, Toy, builtin, snapshot

from medfl.contract import Plan, Reply, Request, Server, Site
from medfl.engine.backend import EventListener, ignore_event
from medfl.engine.backends import local
from medfl.engine.backends.jobs import BackendJob, EvaluateJob, StepJob
from medfl.engine.backends.local import LocalBackend
from medfl.engine.backends.pool import JobResult, WorkerPool, _receive
from medfl.engine.site import SiteRunner
from medfl.engine.store import Store
from medfl.errors import ContractError, MedflError, StoreError
from medfl.records.progress import JobStart
from medfl.settings import Settings
from medfl.testing.cohort import make_plan, make_sites, make_task
from medfl.toolkit.averaging import Averaging
from medfl.types import Meta, Tensors
from medfl.utils.files import flush_files, write_atomic
from medfl.utils.metadata import Count, MetaField, Number
from medfl.utils.wire import tensors_equal

# ---- the pool


@dataclass(frozen=True, kw_only=True)
class ToyJob(BackendJob):
    step: int = 1
    round: int = 1
    tensors: Tensors = field(default_factory=dict)

    @property
    def participants_text(self) -> str:
        return "site-9"


@dataclass(frozen=True, kw_only=True)
class SumJob(ToyJob):
    name: ClassVar[str] = "sum"
    index: int = 0
    wait: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TouchJob(ToyJob):
    name: ClassVar[str] = "touch"
    path: str
    after: str | None = None


class ThreadsJob(ToyJob):
    name: ClassVar[str] = "threads"


class ContractJob(ToyJob):
    name: ClassVar[str] = "contract"


class BugJob(ToyJob):
    name: ClassVar[str] = "bug"


class DieJob(ToyJob):
    name: ClassVar[str] = "die"


TOYS = (SumJob, TouchJob, ThreadsJob, ContractJob, BugJob, DieJob)


def run_job(job: BackendJob) -> JobResult:
    match job:
        case SumJob():
            time.sleep(job.wait)
            return {"index": job.index, "sum": float(job.tensors["x"].sum()), "pid": os.getpid()}, {}
        case TouchJob():
            while job.after is not None and not Path(job.after).exists():
                time.sleep(0.001)
            Path(job.path).touch()
            return {}, {}
        case ThreadsJob():
            return {"threads": torch.get_num_threads()}, {}
        case ContractJob():
            raise ContractError("test_error", "of the test", site="site-9")
        case DieJob():
            os._exit(3)
    raise ZeroDivisionError("of the test")


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(run_job, ["cpu"] * 3, 2, TOYS)
    yield pool
    pool.close()


def test_results_come_in_the_order_of_the_jobs(pool: WorkerPool) -> None:
    """Check that the first jobs, which take longest, still come first."""
    shared = {"x": torch.ones(1000, 300)}  # larger than a pipe holds
    jobs = [SumJob(index=i, wait=0.06 if i < 2 else 0.0, tensors=shared) for i in range(12)]
    jobs += [SumJob(index=12 + i, tensors={"x": torch.tensor([float(i)])}) for i in range(3)]
    for _ in range(2):
        results = pool.run(jobs)
        assert [result["index"] for result, _ in results] == list(range(15))
        assert [result["sum"] for result, _ in results] == [300000.0] * 12 + [0.0, 1.0, 2.0]
    assert len({result["pid"] for result, _ in results}) == 3
    assert os.getpid() not in {result["pid"] for result, _ in results}
    assert pool.run([]) == []


def test_workers_have_the_threads_of_the_run(pool: WorkerPool) -> None:
    assert pool.run([ThreadsJob()] * 3) == [({"threads": 2}, {})] * 3


@pytest.mark.parametrize(
    ("job", "check"),
    [
        (ContractJob(), partial(refused, ContractError, "test_error", site="site-9")),
        (BugJob(), partial(pytest.raises, RuntimeError, match="^ZeroDivisionError in 'bug' of 'site-9': of the test")),
        (DieJob(), partial(refused, MedflError, "dead_worker", job="die", who="site-9")),
    ],
)
def test_an_error_is_raised_when_the_running_jobs_have_ended(
    job: BackendJob, check: Callable[[], Any], pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let one of three workers fail; the two others run until the error was received."""
    received = tmp_path / "received"

    def receive(*arguments: Any) -> Meta:
        try:
            return _receive(*arguments)
        except Exception:
            received.touch()
            raise

    monkeypatch.setattr("medfl.engine.backends.pool._receive", receive)
    running = [TouchJob(path=str(tmp_path / name), after=str(received)) for name in "ab"]
    touch = [TouchJob(path=str(tmp_path / str(i))) for i in range(20)]
    with check() as caught:
        pool.run([job, *running, *touch])
    assert {path.name for path in tmp_path.iterdir()} == {"received", "a", "b"}, (
        "no new jobs are started after an error"
    )
    if isinstance(job, DieJob):
        with refused(MedflError, "dead_worker"):  # it stays dead, and that is said again
            pool.run(touch)
    else:
        assert "test_local_backend.py" in caught.value.__notes__[0], "where it happened"
        pool.run(touch)
        assert len(list(tmp_path.iterdir())) == 23


def test_a_worker_that_dies_while_it_answers() -> None:
    here, there = multiprocessing.Pipe()
    os.write(there.fileno(), b"\0\0\0\x10half")  # a length of 16, then less
    there.close()
    with refused(MedflError, "dead_worker", job="evaluate", who="a, b"):
        _receive(here, EvaluateJob(sites=["a", "b"], step=1, round=1, score_caches={}, tensors={}))
    here.close()


def test_a_copy_of_a_job_is_what_a_worker_gets() -> None:
    meta, tensors = {"rate": 0.1, "of": (1, 2)}, {"x": torch.ones(2)}
    request = {"to": "site-1", "op": "train", "meta": meta}
    job = StepJob(request=request, digest="d", step=3, round=2, keep=[1], tensors=tensors)
    copy = job.copy()
    unpacked = copy.to_request()
    assert unpacked == Request("site-1", "train", copy.tensors, {"rate": 0.1, "of": [1, 2]})
    assert (copy.participants_text, copy.digest, copy.step, copy.round, copy.keep) == ("site-1", "d", 3, 2, [1])
    unpacked.tensors["x"].zero_()
    unpacked.meta["rate"] = 1.0
    assert (meta["rate"], job.tensors["x"].tolist()) == (0.1, [1.0, 1.0])


def test_closing_ends_the_workers() -> None:
    pool = WorkerPool(run_job, ["cpu"] * 2, 1, TOYS)
    pids = {result["pid"] for result, _ in pool.run([SumJob(tensors={"x": torch.ones(1)})] * 2)}
    assert len(pids) == 2
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# ---- one site's step


class Counting(Averaging):
    """Method that appends a line to a file for each training, and overwrites the tensors of its request."""

    log: str

    def execute(self, site: Site, request: Request) -> Reply:
        with open(self.log, "a") as file:
            file.write(f"{site.name} {site.round}\n")
        reply = super().execute(site, request)
        site.state.meta["seen"] = {name: float(t.double().sum()) for name, t in request.tensors.items()}
        for tensor in request.tensors.values():
            tensor.fill_(99)
        request.meta["spoilt"] = True
        return reply


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().split("\n")[:-1])


@pytest.fixture
def backends(tmp_path: Path) -> Iterator[Any]:
    """Return a function that builds local backends in the same folder."""
    made = []

    def make(workers: int = 0, sizes: Mapping[str, int] = SIZES, note: EventListener = ignore_event) -> LocalBackend:
        plan = make_plan(Settings(rounds=2, batch_size=5), sites=list(sizes))
        hosts = {
            name: SiteRunner(name, data, tmp_path / name, plan, lambda step, peer_message: None)
            for name, data in make_sites(sizes).items()
        }
        method = partial(Counting, log=str(tmp_path / "log"))
        made.append(LocalBackend(hosts, method, devices=["cpu"] * workers, note=note))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def requests(value: float = 0.0, sites: Iterable[str] = SIZES) -> list[Request]:
    tensors = {"model/" + name: (tensor + value).to(tensor.dtype) for name, tensor in make_task().initial(0).items()}
    return [Request(name, "fit", tensors, {"a": 1}) for name in sites]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_largest_site_is_given_out_first_and_equal_sites_by_name(workers: int, backends: Any) -> None:
    sizes = {"site-5": 18, "site-4": 9, "site-3": 27, "site-2": 27, "site-1": 9}
    events: list[Any] = []
    backend = backends(workers, sizes, events.append)
    images = {name: len(host.data.train) for name, host in backend.hosts.items()}
    assert images["site-1"] == images["site-4"] < images["site-5"] < images["site-2"] == images["site-3"]
    answers, _, _ = backend.step(1, 1, requests(sites=sizes))
    starts = [event.sites for event in events if isinstance(event, JobStart)]
    assert starts == [("site-2",), ("site-3",), ("site-5",), ("site-1",), ("site-4",)]
    assert [answer.site for answer in answers] == sorted(sizes)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_request_that_is_sent_again_is_answered_from_disk(workers: int, backends: Any, tmp_path: Path) -> None:
    backend = backends(workers)
    first, unavailable, _ = backend.step(1, 1, requests())
    assert unavailable == []
    assert [answer.site for answer in first] == sorted(SIZES)
    assert lines(tmp_path / "log") == [f"{name} 1" for name in sorted(SIZES)]
    replies = dict(backend.replies(first, []))
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    for again in (backend, backends()):  # the same process, and one that was started anew
        answers, _, _ = again.step(1, 1, requests())
        assert [vars(answer) for answer in answers] == [vars(answer) for answer in first]
        assert all(tensors_equal(tensors, replies[name]) for name, tensors in again.replies(answers, []))
    assert lines(tmp_path / "log") == [f"{name} 1" for name in sorted(SIZES)], "nobody trained twice"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == files


def test_another_request_for_a_step_that_is_done_is_refused(backends: Any, tmp_path: Path) -> None:
    backend = backends()
    backend.step(1, 1, requests())
    other_op = [Request(request.to, "other", request.tensors, request.meta) for request in requests()]
    other_meta = [Request(request.to, request.op, request.tensors, {"a": 2}) for request in requests()]
    for changed in (requests(0.5), other_op, other_meta):
        with refused(StoreError, "other_run", site="site-1", step=1):
            backend.step(1, 1, changed)
    assert len(lines(tmp_path / "log")) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_changes_of_a_request_at_a_site_reach_no_one_else(workers: int, backends: Any, tmp_path: Path) -> None:
    own_requests, backend = requests(), backends(workers)
    sums = {name: float(tensor.double().sum()) for name, tensor in own_requests[0].tensors.items()}
    backend.step(1, 1, own_requests)
    assert {name: float(tensor.double().sum()) for name, tensor in own_requests[0].tensors.items()} == sums
    assert all(request.meta == {"a": 1} for request in own_requests)
    for name in SIZES:
        assert Store(tmp_path / name).latest().state().meta["seen"] == sums  # type: ignore[union-attr]


# ---- whole runs


class Blobs(Averaging):
    """Method that keeps a blob at each participant in round 1 and reads it in later rounds."""

    sends_meta: ClassVar[Mapping[str, MetaField]] = {
        "size": MetaField("private", Count),
        "sum": MetaField("public", Number),
    }

    def setup(self, server: Server) -> None:
        super().setup(server)
        server.keep_blob("start", dict(server.state.tensors))

    def plan(self, server: Server) -> Plan | None:
        plan = super().plan(server)
        assert set(server.blob("start")) == set(server.state.tensors)
        if plan is not None and server.round == 3:
            del server.state.blobs["start"]
            server.keep_blob("start", {name: tensor + 0 for name, tensor in server.state.tensors.items()})
        return plan

    def execute(self, site: Site, request: Request) -> Reply:
        if site.round == 1:
            site.keep_blob("own", {"c": torch.randn(5, generator=site.rng("constant"))})
        reply = super().execute(site, request)
        reply.meta["sum"] = float(site.blob("own")["c"].sum())
        site.state.meta.setdefault("sums", []).append(reply.meta["sum"])
        return reply


@pytest.mark.parametrize("workers", [1, 2])
def test_blobs_last_over_steps_and_starts(workers: int, tmp_path: Path) -> None:
    case = Toy(Blobs)
    for rounds in (2, 3, 5):
        case.run(tmp_path / "parts", rounds=rounds, workers=workers)
    case.run(tmp_path / "whole", rounds=5)
    assert snapshot(tmp_path / "parts") == snapshot(tmp_path / "whole")
    for name in SIZES:
        folder = tmp_path / "parts" / "state" / name
        state = Store(folder).latest().state()  # type: ignore[union-attr]
        assert state.meta["sums"] == [state.meta["sums"][0]] * 5
        assert [path.stem for path in (folder / "blobs").iterdir()] == [state.blobs["own"]]
    server = Store(tmp_path / "parts" / "state" / "server")
    assert len(list((server.folder / "blobs").iterdir())) == 1, "the first constant is forgotten"
    assert server.latest().state().blobs  # type: ignore[union-attr]


class Watching(Averaging):
    """Method that appends the resident memory of the process to a file at the start of each round."""

    log: str

    def plan(self, server: Server) -> Plan | None:
        status = Path("/proc/self/status").read_text()
        with open(self.log, "a") as file:
            file.write(status.split("VmRSS:")[1].split()[0] + "\n")
        return super().plan(server)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the process's memory from /proc")
def test_a_hundred_sites(tmp_path: Path) -> None:
    """Run 100 sites, and check that memory grows by less than the size of one round's replies."""
    sites = make_sites({f"site-{index:03}": 2 for index in range(100)})
    result = Toy(Watching, log=str(tmp_path / "log")).run(tmp_path / "run", sites=sites, rounds=3, evaluate_every=3)
    assert result.outcome.status == "finished"
    used = [int(line) for line in (tmp_path / "log").read_text().split()]
    assert len(used) == 4
    assert used[-1] - used[1] < 20_000, f"resident memory at the start of each round, KiB: {used}"


# ---- power cuts


@pytest.mark.parametrize("workers", [1, 2])
def test_steps_of_all_sites_are_on_the_disk_before_the_server_counts_on_them(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that each site's file and its folder are flushed before the server's commit."""
    flushed: set[str] = set()
    commits, replace = [], os.replace

    def note_flush(descriptor: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def note_commit(source: Path, target: Path) -> None:
        if target.parent.name == "server":
            steps = {str(path) for path in (tmp_path / "run" / "state").glob(f"site-*/{target.name}")}
            folders = {str(Path(path).parent) for path in steps}
            commits.append(len(steps))
            assert steps | folders <= flushed, f"{target.name} counts on what is not on the disk"
            flushed.clear()
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(os, "replace", note_commit)
    Toy(Averaging).run(tmp_path / "run", workers=workers, sites=make_sites(SIZES))
    assert max(commits) == len(SIZES)


@pytest.mark.parametrize("workers", [1, 2])
def test_checkpoints_stay_until_the_step_is_on_the_disk(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, a site has its step or the checkpoint from which it trains the step."""
    state, waiting = tmp_path / "state", []

    def note_checkpoints(paths: Sequence[Path]) -> None:
        flush_files(paths)
        waiting.append(len(list(state.glob("site-*/training-1.safetensors"))))

    monkeypatch.setattr(local, "flush_files", note_checkpoints)
    builtin("fedavg").run(tmp_path, rounds=2, workers=workers, checkpoint_minutes=0, sites=make_sites(SIZES))
    assert max(waiting) == len(SIZES)
    assert not list(state.glob("site-*/training-1.safetensors"))


def test_a_disk_that_fails_while_it_is_flushed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name / "file" for name in ("a", "b")]
    for path in paths:
        write_atomic(path, b"new", flush=False)
    flush_files(paths)

    def fail(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(paths[1]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with refused(StoreError, "unwritable_file", path=str(paths[1]), reason="Input/output error"):
        flush_files(paths)


def test_a_resumed_run_with_other_workers_warns_that_bits_may_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = builtin("fedavg")
    case.run(tmp_path, rounds=1)
    case.run(tmp_path, rounds=2, workers=2)
    assert "started with other execution; its last bits may differ" in caplog.text
