"""Number, start and lifetime of helper processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing.context import BaseContext


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fresh_context(modules: Sequence[str]) -> BaseContext:
    """Return a multiprocessing context whose processes are not forks of this process.

    Threads and an initialised GPU would not survive a fork. If the system supports a fork server, processes are forked
    from a server process that imports the given modules once, which saves time and memory.

    Args:
        modules: Names of the modules that the processes need.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules])
    return context


def live_with_parent() -> None:
    """End this process when its parent ends, and ignore Ctrl+C. Call it at the start of a child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the parent process to end, then exit."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
