"""Devices of worker processes: which are accepted, who queries CUDA, and errors and warnings about a GPU's memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_stub import Gpu, installed_gpu
from refusals import refused

from medfl.errors import MedflError, SettingsError
from medfl.settings import Execution, read_settings
from medfl.training import devices
from medfl.training.devices import GIB, GpuMemory, MemoryWatch, task_device, with_worker_devices, worker_devices


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    yield from installed_gpu(tmp_path, monkeypatch)


def read(**values: Any) -> Execution:
    return read_settings(Execution, values, "the execution")


@pytest.mark.parametrize(
    ("values", "device", "workers", "expected"),
    [
        ({}, "auto", 1, ()),
        ({"workers": 3}, "auto", 3, ("cpu", "cpu", "cpu")),
        ({"devices": "cpu, cpu"}, "cpu", 2, ("cpu", "cpu")),
        ({"devices": ["cpu"]}, "cpu", 1, ("cpu",)),
        ({"devices": ["cpu", "cpu"], "workers": 2, "device": "cpu"}, "cpu", 2, ("cpu", "cpu")),
        ({"devices": ["cpu", "cpu"], "device": "auto"}, "cpu", 2, ("cpu", "cpu")),
    ],
)
def test_each_name_is_a_worker(values: Any, device: str, workers: int, expected: tuple[str, ...]) -> None:
    execution = with_worker_devices(read(**values))
    assert (execution.device, execution.workers, worker_devices(execution)) == (device, workers, expected)
    assert with_worker_devices(read(**execution.model_dump())) == execution, "run.json is read again"


@pytest.mark.parametrize(
    ("values", "code", "fields"),
    [
        ({"devices": "cpu,cuda:0"}, "mixed_devices", {"setting": "devices", "found": ["cpu", "cuda:0"]}),
        ({"devices": "cpu,cpu", "workers": 3}, "incompatible_settings", {"settings": ["devices", "workers"]}),
        ({"devices": "cpu,cpu", "workers": 1}, "incompatible_settings", {"settings": ["devices", "workers"]}),
        ({"devices": "cpu", "device": "cuda"}, "incompatible_settings", {"settings": ["devices", "device"]}),
        ({"devices": "cuda:0", "device": "cuda:1"}, "incompatible_settings", {"settings": ["devices", "device"]}),
        ({"devices": "cuda:0"}, "missing_gpu", {"devices": ["cuda:0"], "found": []}),
    ],
)
def test_contradictions_and_missing_gpus_are_refused(values: Any, code: str, fields: dict[str, Any]) -> None:
    with refused(SettingsError, code, **fields):
        with_worker_devices(read(**values))


@pytest.mark.parametrize("name", ["cuda", "auto", "gpu:0", "cuda:x", ""])
def test_a_worker_needs_the_name_of_one_device(name: str) -> None:
    with refused(SettingsError, "invalid_setting"):
        read(devices=[name])


def test_a_child_process_counts_the_gpus(gpu: Gpu) -> None:
    with refused(SettingsError, "missing_gpu", devices=["cuda:1", "cuda:7"], found=["cuda:0"]):
        with_worker_devices(read(devices="cuda:0,cuda:1,cuda:7"))
    execution = with_worker_devices(read(devices="cuda:0,cuda:0"))
    assert (task_device(execution), execution.workers) == ("cuda", 2)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    processes = {int(line.split()[1]) for line in gpu.calls("cuda")}
    assert processes
    assert os.getpid() not in processes


@pytest.mark.parametrize("use", ["init", "is_available"])
def test_workers_are_refused_after_this_process_used_a_gpu(use: str, gpu: Gpu) -> None:
    getattr(torch.cuda, use)()
    with refused(SettingsError, "gpu_used_before_workers"):
        with_worker_devices(read(devices="cuda:0,cuda:0"))


# ---- memory

FULL = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 16.00 GiB of which 1.00 GiB is free."
)


def memory(free: float = 1, held: float = 12, reserved: float = 12, total: float = 20) -> GpuMemory:
    return GpuMemory("cuda:1", *(int(value * GIB) for value in (free, total, held, reserved)))


@pytest.mark.parametrize(("names", "workers"), [((), 1), (("cuda:1",), 1), (("cuda:0", "cuda:1", "cuda:1"), 2)])
def test_a_full_gpu_is_explained(names: tuple[str, ...], workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "read_gpu_memory", lambda device: memory())
    fields = {"device": "cuda:1", "who": "site-3", "needed": "2.50 GiB", "free": GIB, "total": 20 * GIB}
    watch = MemoryWatch(device="cuda", devices=names, batch_size=64)
    with (
        refused(MedflError, "gpu_out_of_memory", **fields, batch_size=64, workers=workers) as caught,
        watch.watch("site-3"),
    ):
        raise torch.OutOfMemoryError(FULL)
    assert ("--devices" in str(caught.value)) == (workers > 1), "one worker can't be fewer"
    with pytest.raises(ValueError, match="other"), watch.watch("site-3"):
        raise ValueError("other")


PAIR = ("cuda:1", "cuda:1")


@pytest.mark.parametrize(
    ("names", "state", "left"),
    [
        # One process: the free memory, and what it holds, without the most that it had reserved.
        ((), {"free": 3, "held": 12, "reserved": 12}, 3),
        ((), {"free": 2, "held": 12, "reserved": 12}, 2),
        ((), {"free": 1.5, "held": 12, "reserved": 12}, 1.5),
        ((), {"free": 8, "held": 5, "reserved": 12}, 1),
        ((), {"free": 0.5, "held": 0, "reserved": 0}, 0.5),
        (("cuda:0", "cuda:1"), {"free": 1.5, "held": 12, "reserved": 12}, 1.5),
        (("cuda:0", "cuda:1"), {"free": 8, "held": 12, "reserved": 12}, 8),
        # Two workers: no more than the whole memory without twice the most that one had reserved.
        (PAIR, {"free": 11, "held": 9, "reserved": 9}, 2),
        (PAIR, {"free": 10, "held": 9.25, "reserved": 9.25}, 1.5),
        (PAIR, {"free": 9, "held": 11, "reserved": 11}, -2),
        (PAIR, {"free": 1, "held": 4, "reserved": 4}, 1),
    ],
)
def test_a_gpu_with_less_than_a_tenth_left_is_warned_of_once(
    names: tuple[str, ...],
    state: dict[str, float],
    left: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert memory(**state).left(max(1, names.count("cuda:1"))) == left * GIB
    states = iter([memory(free=20, held=0, reserved=0), *[memory(**state)] * 9])
    monkeypatch.setattr(devices, "read_gpu_memory", lambda device: next(states))
    watch = MemoryWatch(device="cuda", devices=names, batch_size=64)
    for _ in range(3):
        with watch.watch("site-3"):
            pass
    assert len(caplog.records) == (left < 2)
    for record in caplog.records:
        values = {"cuda:1", 10.0, 20.0, *state.values(), max(1, names.count("cuda:1"))}
        assert isinstance(record.args, tuple)
        assert values < set(record.args)
        assert "--batch-size (now 64)" in record.getMessage()
        assert ("--devices" in record.getMessage()) == (names == PAIR)


def test_the_memory_is_checked_before_and_during_a_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first job meets a program that takes memory meanwhile, the second job one that has it already."""
    plenty, little = memory(free=8), memory(free=1)
    state = {"now": plenty}
    read: list[str] = []

    def read_memory(device: str) -> GpuMemory:
        read.append(device)
        return state["now"]

    monkeypatch.setattr(devices, "read_gpu_memory", read_memory)
    monkeypatch.setattr(devices, "CHECK_SECONDS", 0.01)
    watch = MemoryWatch(device="cuda", devices=(), batch_size=64)
    with watch.watch("site-3"):
        state["now"] = little
        until = time.monotonic() + 60
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.01)
        assert len(caplog.records) == 1
    assert read[0] == "cuda"
    assert set(read[1:]) == {"cuda:1"}, "in another thread, the current GPU may be another one"
    with MemoryWatch(device="cuda", devices=(), batch_size=64).watch("site-3"):
        assert len(caplog.records) == 2


def test_the_memory_is_read_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda name: {"cuda:1": (1, 2)}[name])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda name: {"cuda:1": 3}[name])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda name: {"cuda:1": 4}[name])
    assert devices.read_gpu_memory("cuda") == GpuMemory("cuda:1", free=1, total=2, held=3, reserved=4)


def test_the_memory_of_the_cpu_is_not_read() -> None:
    assert devices.read_gpu_memory("cpu") is None
