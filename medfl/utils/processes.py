"""Processes that help another one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def live_with_parent() -> None:
    """Called in a process that was just started: it ends with its parent, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
