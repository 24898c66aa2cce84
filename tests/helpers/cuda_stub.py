"""A stand-in for a GPU in sight: it notes who asks for it, and fails in a process forked afterwards, as CUDA does."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ASKS = ("is_available", "device_count")
STARTS = (
    *("init", "_lazy_init", "set_device", "current_device", "get_device_name"),
    *("mem_get_info", "max_memory_reserved", "get_rng_state", "set_rng_state"),
)
"""Calls of `torch.cuda` that start the driver; a forked process can't make them afterwards."""

QUEUES = ("manual_seed", "manual_seed_all")
"""Calls that wait for a start of CUDA, and happen then."""

FORKED = {
    "cuda": "Cannot re-initialize CUDA in forked subprocess.",
    "autograd": "Unable to handle autograd's threading in combination with fork-based multiprocessing.",
}
"""Error of torch in a process that was forked too late. A backward pass starts a thread for each visible GPU."""


class Gpu:
    """Simulate one visible GPU from the call of `install` on.

    Args:
        log: A file that gets a line for each call, of this process and of those that it forks.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._touched: dict[str, int] = {}
        self._started: int | None = None
        log.touch()

    def calls(self, kind: str) -> list[str]:
        """Calls so far of a kind (``cuda``, ``queue``, ``autograd``), each with its process and where it came from."""
        return [line for line in self._log.read_text().splitlines() if line.startswith(kind + " ")]

    def install(self, patch: Callable[[Any, str, Any], object] = setattr) -> Gpu:
        """Replace what `torch.cuda` and autograd do, by `patch`; returns itself."""
        for name in ASKS:
            patch(torch.cuda, name, self._noting("cuda", name, lambda *_: 1))
        for name in STARTS:
            patch(torch.cuda, name, self._noting("cuda", name, self._start))
        for name in QUEUES:
            patch(torch.cuda, name, self._noting("queue", name, lambda *_: None))
        patch(torch.backends.cuda, "is_built", lambda: True)
        patch(torch.cuda, "is_initialized", lambda: self._started == os.getpid())
        for name in ("backward", "grad"):
            patch(torch.autograd, name, self._noting("autograd", name, getattr(torch.autograd, name)))
        return self

    def _start(self, *_: object) -> None:
        self._started = os.getpid()

    def _noting(self, kind: str, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            where = next(_places(), "?")
            with self._log.open("a") as file:
                file.write(f"{kind} {os.getpid()} {name} {where}\n")
            if kind in FORKED and self._touched.setdefault(kind, os.getpid()) != os.getpid():
                raise RuntimeError(FORKED[kind])
            return act(*args, **options)

        return call


def _places() -> Iterator[str]:
    """Files and lines outside torch that led here, the nearest first."""
    for frame in reversed(traceback.extract_stack()[:-2]):
        if f"{os.sep}torch{os.sep}" not in frame.filename and frame.filename != __file__:
            yield f"{frame.filename}:{frame.lineno}"


def installed_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Yield an installed stand-in, and undo torch's settings for GPUs afterwards; for a fixture.

    Args:
        folder: Folder of the log of calls.
        monkeypatch: Pytest's fixture, which undoes the installation.
    """
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield Gpu(folder / "calls.log").install(monkeypatch.setattr)
    torch.use_deterministic_algorithms(False)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
