"""Settings for all tests: their order, one thread, no GPU, no time limits, and no waiting for the disk."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from undrawn import undrawn, without_report

os.environ["CUDA_VISIBLE_DEVICES"] = ""
"""Tests train before they fork processes, which torch can't where a GPU is in sight. It holds for all they start."""

settings.register_profile("medfl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("medfl")
"""No example, and no making of one, has a time limit."""

LONG = (
    "test_conformance_table.py",
    "test_flare.py",
    "test_benchmarks.py",
    "test_docs.py",
    "test_promises.py",
    "test_readme.py",
    "test_remote_faults.py",
    "test_site_bundles.py",
    "test_wheel.py",
    "test_workflow.py",
)
"""Files that take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that workers that share the files end at about the same time."""
    items.sort(key=lambda item: item.path.name not in LONG)


gc.disable()


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection; `medfl.utils.imports` states the cost."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread, like a run. Two threads are slower on small tensors while other processes compute."""
    import torch  # not above: pytest_collection_finish

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def nobody_waits_for_the_disk() -> Iterator[None]:
    """Calls of fsync cost nothing: they guard against power cuts, which no test makes. They are still made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def ends_of_runs_and_partitions_are_brief() -> Iterator[None]:
    """Runs write no report, and partitions an empty figure: these take half of a tiny run."""
    from medfl.plugins import Registry

    notify = Registry.notify
    brief = {"medfl_run_ended": without_report, "medfl_partition_written": undrawn}

    def notify_briefly(registry: Registry, event: str, **facts: object) -> None:
        with brief.get(event, nullcontext)():
            notify(registry, event, **facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "notify", notify_briefly)
        yield


@pytest.fixture
def run_reports(monkeypatch) -> None:
    """Runs of the test write their reports, without figures."""
    monkeypatch.setattr("undrawn.run_reports", True)


@pytest.fixture(scope="session", autouse=True)
def heartbeats_need_no_thread() -> Iterator[None]:
    """No thread waits for heartbeats that come after half a minute: starting one takes 7 % of a tiny run."""
    from medfl.utils.heartbeat import BEAT_SECONDS, HeartbeatThread

    make = HeartbeatThread.__init__

    def make_without_thread(heartbeats: HeartbeatThread, every: float = BEAT_SECONDS) -> None:
        make(heartbeats, every)
        if every >= BEAT_SECONDS:
            heartbeats._thread = SimpleNamespace(start=lambda: None, join=lambda: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeartbeatThread, "__init__", make_without_thread)
        yield


@pytest.fixture(scope="session", autouse=True)
def entry_points_are_read_once() -> Iterator[None]:
    """Read the entry points of installed packages once for each search path, not whenever plugins are loaded."""
    read = importlib.metadata.entry_points
    known = cache(lambda group, path: read(group=group))

    def entry_points(**options: str) -> importlib.metadata.EntryPoints:
        return known(options["group"], tuple(sys.path)) if options.keys() == {"group"} else read(**options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", entry_points)
        yield


@pytest.fixture(name="undrawn")
def without_figures() -> Iterator[None]:
    """Pages of the test have empty figures."""
    with undrawn():
        yield


@pytest.fixture
def medfl(capsys):
    """Return a function that runs the command line and returns its status, output and errors."""
    from medfl.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def medfl_command(capfd):
    """The same for output past Python's own streams; the status is as the command gave it."""
    from medfl.cli.main import main

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return run
