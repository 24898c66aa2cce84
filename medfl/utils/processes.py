"""Processes that help another one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing.context import BaseContext


def fresh_context(modules: Sequence[str]) -> BaseContext:
    """How processes are started that are no forks of this one, whose threads or GPU they would not survive.

    Where the system can, they are forks of a process that has imported some modules and nothing else, so that these
    cost their time and memory once, however many processes there are.

    Args:
        modules: Names of the modules that they need.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules])
    return context


def live_with_parent() -> None:
    """Called in a process that was just started: it ends with its parent, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
