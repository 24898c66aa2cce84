"""Settings for all tests: their order, one thread, no GPU, no time limits, and no waiting for the disk."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

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
