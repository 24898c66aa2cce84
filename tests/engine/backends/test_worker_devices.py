"""Runs whose workers have named devices: the same bits as in one process, also after kill -9; where models compute."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_stub import Gpu
from fault_harness import Child, Faults
from refusals import refused
from torch import nn
from toys import PAIR, Toy, builtin, digests, snapshot

from medfl.contract import Model, Replies, Reply, Request, Server, Site
from medfl.engine.backends import local
from medfl.engine.backends.pool import WorkerPool
from medfl.errors import MedflError
from medfl.task import Task
from medfl.testing.cohort import make_partly_frozen_task, make_sites, make_task
from medfl.toolkit.averaging import Averaging

TWO = ("cpu", "cpu")


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold"])
def test_workers_with_devices_give_the_bits_of_one_process(name: str, tmp_path: Path) -> None:
    case = builtin(name, balance="loss")
    single = case.run(tmp_path / "single")
    several = case.run(tmp_path / "several", devices=TWO)
    assert digests(several) == digests(single)
    assert snapshot(tmp_path / "several") == snapshot(tmp_path / "single")


@pytest.mark.parametrize("number", [12, 40])
def test_a_killed_run_with_devices_continues_with_the_same_bits(number: int, tmp_path: Path) -> None:
    case = builtin("fedavg", rounds=3)

    def kill(count: int, what: str, path: str) -> None:
        if count == number:
            os.killpg(0, signal.SIGKILL)

    def work() -> None:
        Faults(kill).install()
        case.run(tmp_path / "killed", sites=make_sites(PAIR), devices=TWO)

    assert Child(work).end() == "killed"
    continued = case.run(tmp_path / "killed", sites=make_sites(PAIR), devices=TWO)
    whole = case.run(tmp_path / "whole", sites=make_sites(PAIR))
    assert digests(continued) == digests(whole)
    assert snapshot(tmp_path / "killed") == snapshot(tmp_path / "whole")


# ---- which process computes on which device


class Recording(Averaging):
    """Method that writes the process of each training, evaluation and aggregation to a file, with its device."""

    log: str

    def execute(self, site: Site, request: Request) -> Reply:
        self._write("train")
        return super().execute(site, request)

    def predictor(self, task: Task, models: list[Model]) -> nn.Module:
        self._write("evaluate")
        return super().predictor(task, models)

    def aggregate(self, server: Server, replies: Replies) -> None:
        places = sorted({str(tensor.device) for _, reply in replies for tensor in reply.values()})
        self._write(f"aggregate {' '.join(places)}")
        super().aggregate(server, replies)

    def _write(self, words: str) -> None:
        with open(self.log, "a") as file:
            file.write(f"{words} {os.environ['TEST_DEVICE']} {os.getpid()}\n")


def test_workers_train_and_evaluate_on_their_devices_and_the_server_aggregates_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Note the device that each process selects; the task itself computes on the CPU here."""
    monkeypatch.setenv("TEST_DEVICE", "none")
    for module in ("local", "pool"):
        monkeypatch.setattr(
            f"medfl.engine.backends.{module}.use_device", lambda name: monkeypatch.setenv("TEST_DEVICE", name)
        )
    log = tmp_path / "log"
    Toy(Recording, log=str(log)).run(tmp_path / "run", devices=("cuda:1", "cuda:0"), rounds=2)
    lines = [line.split() for line in log.read_text().splitlines()]
    for activity in ("train", "evaluate"):
        workers = {(device, int(process)) for what, device, process in (line for line in lines if line[0] == activity)}
        assert {device for device, _ in workers} == {"cuda:0", "cuda:1"}
        assert len(workers) == 2, "each worker has one device"
        assert os.getpid() not in {process for _, process in workers}
    aggregations = {tuple(line) for line in lines if line[0] == "aggregate"}
    assert aggregations == {("aggregate", "cpu", "cuda:1", str(os.getpid()))}


class _PoolStartedError(Exception):
    """Error in place of the start of workers, after all that comes before it."""


@pytest.mark.parametrize(
    ("task", "settings"), [("plain", {"balance": "loss"}), ("frozen", {"train_part": "head"}), ("plain", {})]
)
def test_no_process_uses_a_gpu_before_its_workers_start(
    task: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build everything for a task on a GPU, up to the fork, with class weights in the loss and with cached features."""
    gpu = Gpu(tmp_path / "calls.log").install(monkeypatch.setattr)

    def start(*arguments: Any) -> WorkerPool:
        raise _PoolStartedError

    monkeypatch.setattr(local, "WorkerPool", start)
    case = builtin("fedavg", **settings)
    case.device = "cuda"
    with pytest.raises(_PoolStartedError):
        case.run(
            tmp_path / "run",
            devices=("cuda:0", "cuda:0"),
            task=make_task("plain") if task == "plain" else make_partly_frozen_task(),
        )
    assert gpu.calls("cuda") == []


# ---- errors and data


class Exhausted(Averaging):
    """Method whose training at site-2 runs out of memory."""

    def execute(self, site: Site, request: Request) -> Reply:
        if site.name == "site-2":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 MiB.")
        return super().execute(site, request)


@pytest.mark.parametrize("devices", [(), TWO])
def test_a_step_without_memory_is_explained(devices: tuple[str, ...], tmp_path: Path) -> None:
    with refused(MedflError, "gpu_out_of_memory", who="site-2", needed="3.00 MiB", batch_size=5):
        Toy(Exhausted).run(tmp_path / "run", devices=devices)


class ExhaustedServer(Averaging):
    """Method whose server runs out of memory."""

    def aggregate(self, server: Server, replies: Replies) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 MiB.")


def test_a_server_without_memory_is_explained(tmp_path: Path) -> None:
    with refused(MedflError, "gpu_out_of_memory", who="the server", needed="3.00 MiB", batch_size=5):
        Toy(ExhaustedServer).run(tmp_path / "run")
