"""Forked children in which the disk or the process fails at a chosen call, counted over all processes of a run.

A child is forked from the warm test process, so a run costs what it computes. Nothing is patched in the test process.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import medfl.engine.journal
import medfl.utils.files

PATIENCE = 300.0
"""Seconds after which a process counts as left for ever, also where others keep all cores busy."""


class Child:
    """A forked process in a group of its own.

    Args:
        work: What it does. A MedflError or any other exception ends it; its type and message can be read.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.setsid()
                os.close(self._read)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self._say = write
                work()
                status = 0
            except BaseException as error:  # reported to the parent, which judges it
                os.write(write, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(status)
        os.close(write)

    def kill(self, number: int = signal.SIGKILL, group: bool = True) -> None:
        """Signal the group or the first process only."""
        (os.killpg if group else os.kill)(self.pid, number)

    def has_ended(self) -> bool:
        """True if the first process has ended; `end` returns its status."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> str:
        """Wait until the child and all processes that it forked are gone.

        Returns:
            ``done``, ``killed``, or the type and message of the error that ended it.

        Raises:
            AssertionError: If one of them is left after `PATIENCE`.
        """
        message = b""
        while True:  # the pipe ends when the last process that inherited it does
            if not select.select([self._read], [], [], PATIENCE)[0]:
                self.kill()
                os.waitpid(self.pid, 0)
                raise AssertionError(f"a process is left after {PATIENCE} s; said so far: {message.decode()!r}")
            part = os.read(self._read, 65536)
            if not part:
                break
            message += part
        os.close(self._read)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            return "killed"
        return message.decode() or ("done" if os.WEXITSTATUS(status) == 0 else f"exit {os.WEXITSTATUS(status)}")


class Faults:
    """Counts the calls that touch the disk and lets them go wrong; install it in a child only.

    Args:
        act: Called with (number of the call from 1, what it is, path or ""); may raise, kill, or return "half" for a
            write whose first half only shall happen before it is called again, with the same number and the
            word "rest"; where that returns, the other half follows.
    """

    def __init__(self, act: Callable[[int, str, str], str | None]) -> None:
        self._act = act
        self._count = multiprocessing.get_context("fork").Value("i", 0)

    @property
    def count(self) -> int:
        """Calls so far, over all processes."""
        return int(self._count.value)

    def install(self) -> None:
        """Patch this process and its forks."""
        for module in (medfl.utils.files, medfl.engine.journal):
            module.open = self._open  # type: ignore[attr-defined]
        for name in ("fsync", "replace", "unlink"):
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _point(self, what: str, path: object) -> tuple[int, str | None]:
        with self._count.get_lock():
            self._count.value += 1
            number = self._count.value
            return number, self._act(number, what, str(path))  # whom it kills does not hold the lock of the count

    def _wrapped(self, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self._point(what, args[0])
            return original(*args, **options)

        return call

    def _open(self, path: Any, mode: str = "r", *args: Any) -> Any:
        if not set(mode) & set("wa+"):
            return builtins.open(path, mode, *args)
        self._point("open", path)
        return _File(builtins.open(path, mode, *args), path, self)


class _File:
    """A file whose writes are counted."""

    def __init__(self, file: Any, path: object, faults: Faults) -> None:
        self._file, self._path, self._faults = file, path, faults

    def write(self, data: Any) -> None:
        written = 0
        number, action = self._faults._point("write", self._path)
        if action == "half":
            written = self._file.write(data[: len(data) // 2])
            self._file.flush()
            self._faults._act(number, "rest", str(self._path))
        self._file.write(data[written:])

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class StopError(Exception):
    """Stands for a kill."""


def run_until(case: Any, folder: Path, step: int, **settings: Any) -> Path:
    """Run until the given step begins."""

    def unavailable(site: str, now: int) -> bool:
        if now == step:
            raise StopError
        return False

    with pytest.raises(StopError):
        case.run(folder, unavailable=unavailable, **settings)
    return folder
