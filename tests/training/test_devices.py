"""Devices of worker processes: which are accepted, who queries CUDA, and errors and warnings about a GPU's memory."""

from __future__ import annotations

import os
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


def memory(reserved: float) -> GpuMemory:
    return GpuMemory("cuda:1", free=GIB, total=16 * GIB, reserved=int(reserved * GIB))


@pytest.mark.parametrize(("names", "workers"), [((), 1), (("cuda:1",), 1), (("cuda:0", "cuda:1", "cuda:1"), 2)])
def test_a_full_gpu_is_explained(names: tuple[str, ...], workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "read_gpu_memory", lambda device: memory(12))
    fields = {"device": "cuda:1", "who": "site-3", "needed": "2.50 GiB", "free": GIB, "total": 16 * GIB}
    watch = MemoryWatch(device="cuda", devices=names, batch_size=64)
    with (
        refused(MedflError, "gpu_out_of_memory", **fields, batch_size=64, workers=workers) as caught,
        watch.watch("site-3"),
    ):
        raise torch.OutOfMemoryError(FULL)
    assert ("--devices" in str(caught.value)) == (workers > 1), "one worker can't be fewer"
    with pytest.raises(ValueError, match="other"), watch.watch("site-3"):
        raise ValueError("other")


@pytest.mark.parametrize(
    ("names", "reserved", "warnings"),
    [((), 12, 0), (("cuda:1", "cuda:1"), 8, 0), (("cuda:1", "cuda:1"), 8.1, 1), (("cuda:0", "cuda:1"), 12, 0)],
)
def test_workers_that_may_not_fit_are_warned_of_once(
    names: tuple[str, ...],
    reserved: float,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(devices, "read_gpu_memory", lambda device: memory(reserved))
    watch = MemoryWatch(device="cuda", devices=names, batch_size=64)
    for _ in range(2):
        with watch.watch("site-3"):
            pass
    assert len(caplog.records) == warnings


def test_the_memory_of_the_cpu_is_not_read() -> None:
    assert devices.read_gpu_memory("cpu") is None
