"""Locks: whether they work where a site keeps its state, who holds one, and what a process that died has left."""

from __future__ import annotations

import os
from pathlib import Path

from medfl.errors import StoreError
from medfl.utils.locks import being_written, held
from medfl_flare.kit import PID_FILES, processes
from medfl_flare.sites.preflight import Caution


def run_locks(state: Path) -> str:
    """Whether locks exclude anybody in the folder of runs, and whether a process holds a run there.

    A lock of medfl ends with its process, so a file that is left over means nothing.

    Raises:
        StoreError: If two processes could write the same run.
    """
    probe = state / f".medfl-lock-{os.getpid()}"
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with held(probe, remove=True) as first, held(probe) as second:
        if not first or second:
            raise StoreError(
                "no_file_locks",
                f"locks have no effect in '{state}', as on some network drives: two processes could write one run. Put "
                "'state' on a local disk",
                path=state,
            )
    runs = sorted((state / "runs").iterdir()) if (state / "runs").is_dir() else []
    busy = [run.name for run in runs if being_written(run)]
    if busy:
        return Caution(
            f"a process holds the run {', '.join(busy)}: a job that goes on, or one that did not end. A new job waits "
            "for it 90 s; `medfl federate stop KIT` ends it"
        )
    return "they work, and no run is held"


def kit_locks(kit: Path) -> str:
    """Whether NVFlare's notes of running processes are true; after a power cut another process may have the number."""
    running = processes(kit)
    left = [name for name in PID_FILES if (kit / name).is_file()]
    if running:
        return f"the kit's process {running[0]} runs here"
    if left:
        return f"nothing runs; {', '.join(left)} of a process that died are removed at the next start"
    return "nothing runs, nothing is left over"
