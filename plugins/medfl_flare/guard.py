"""Run a startup kit for as long as the process that started it lives: ``python -m medfl_flare.guard PARENT KIT``.

A startup kit is the folder with certificate, settings and scripts with which the server or a site joins the federation.
NVFlare's script ``sub_start.sh`` in the kit starts the kit's process. NVFlare starts its job processes in separate
sessions, so no process group contains all processes of a kit. The guard therefore adopts orphaned processes (on Linux)
and ends all its descendants when its parent has ended for any reason. It imports only the standard library, as it stays
in memory for as long as the kit runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

MODULE = "medfl_flare.guard"
"""Name of this module in the command line of a guard."""

ONCE_OPTION = "--once"
"""Option of NVFlare's script: do not restart the kit's process."""

POLL_SECONDS = 0.25
"""Seconds between two checks of the parent process."""

PATIENCE_SECONDS = 5.0
"""Seconds for processes to end by themselves before they are killed."""

_NVFLARE_MODULE = "nvflare.private.fed.app."
"""Prefix of the modules that run as a server, a site or one of their jobs."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Options of Linux's prctl."""


def guard_command(kit: Path, parent: int, *, restart: bool) -> list[str]:
    """Return the command line of a guard.

    Args:
        kit: The startup kit to run.
        parent: Process id of the parent of the guard.
        restart: Whether NVFlare's script restarts the kit's process if it dies.
    """
    words = [sys.executable, "-m", MODULE, str(parent), str(kit.resolve())]
    return [*words, *([] if restart else [ONCE_OPTION])]


def run(parent: int, kit: Path, options: list[str]) -> int:
    """Start a kit, and end all its processes when the parent has ended or the guard receives a signal.

    Args:
        parent: Process id of the guard's parent at its start.
        kit: The startup kit.
        options: Options of NVFlare's script ``sub_start.sh``.

    Returns:
        The exit status of the script, or the negative number of the signal that ended the script or the guard.
    """
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    prctl = _prctl()
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = None if prctl is None else partial(prctl, _PR_SET_PDEATHSIG, int(signal.SIGKILL))
    command = [str(kit / "startup" / "sub_start.sh"), *options]
    # A separate process group, so that Ctrl-C reaches only the guard.
    script = subprocess.Popen(command, preexec_fn=before, process_group=0)
    while True:
        if (status := _ended_children().get(script.pid)) is not None:
            return status
        if signals or os.getppid() != parent:
            end_processes(kit)
            return -(signals[0] if signals else signal.SIGTERM)
        time.sleep(POLL_SECONDS)


def end_processes(kit: Path) -> None:
    """End all descendants of this process, and all other processes of a kit; kill processes that do not end in time."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + PATIENCE_SECONDS
        while living := descendants() | {*processes(kit)} - {os.getpid()}:
            for process in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            if time.monotonic() > until:
                break
            time.sleep(POLL_SECONDS)
            _ended_children()


def descendants() -> set[int]:
    """Return the process ids of all descendants of this process, without zombies."""
    with subprocess.Popen(["ps", "-ax", "-o", "pid=,ppid=,state="], stdout=subprocess.PIPE, text=True) as listing:
        output, _ = listing.communicate()
    children: dict[int, list[int]] = {}
    zombies = {listing.pid}
    for line in output.splitlines():
        process, parent, state = line.split()
        children.setdefault(int(parent), []).append(int(process))
        if state.startswith("Z"):
            zombies.add(int(process))
    living_descendants: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        waiting += (new := children.get(waiting.pop(), []))
        living_descendants.update(new)
    return living_descendants - zombies


def processes(kit: Path) -> list[int]:
    """Return the ids of the processes that run from a kit: its guard, NVFlare's processes, and job processes."""
    listed = subprocess.run(["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    root = str(kit.resolve())
    numbers = []
    for line in listed.splitlines():
        number, _, words = line.strip().partition(" ")
        is_guard = MODULE in words and words.removesuffix(f" {ONCE_OPTION}").endswith(f" {root}")
        if is_guard or (_NVFLARE_MODULE in words and f"-m {root} " in words) or f"{root}/startup/sub_start.sh" in words:
            numbers.append(int(number))
    return numbers


def _ended_children() -> dict[int, int]:
    """Reap all children that have ended, including adopted ones. Returns a mapping from process id to exit status."""
    statuses: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):  # there are no children
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return statuses


def _prctl() -> Callable[[int, int], int] | None:
    """Return Linux's prctl as a function of (option, value), or None on other systems."""
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).prctl
    return lambda option, value: function(option, ctypes.c_ulong(value), 0, 0, 0)


if __name__ == "__main__":
    if (status := run(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])) < 0:
        signal.signal(-status, signal.SIG_DFL)  # service managers distinguish an end by SIGTERM from a failure
        os.kill(os.getpid(), -status)
    sys.exit(status)
