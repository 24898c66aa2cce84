"""Checks of locks: whether file locks work in a site's state folder, and which locks a process holds or left.

Each check returns a sentence with its finding, and raises an error if a run will fail. A `Caution` is a finding after
which a run may fail later.
"""

from __future__ import annotations

import os
from pathlib import Path

from medfl.errors import StoreError
from medfl.utils.locks import hold_lock, is_being_written
from medfl_flare.kit import PID_FILES, processes
from medfl_flare.sites.preflight import Caution


def check_run_locks(state: Path) -> str:
    """Check that file locks work in the state folder, and whether a process holds a run there. Creates the folder.

    A lock of medfl ends with its process, so a remaining lock file has no effect.

    Raises:
        StoreError: If locks have no effect, so that two processes could write the same run.
    """
    probe = state / f".medfl-lock-{os.getpid()}"
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with hold_lock(probe, remove=True) as first, hold_lock(probe) as second:
        if not first or second:
            raise StoreError(
                "no_file_locks",
                f"file locks have no effect in '{state}', as on some network drives: two processes could write one "
                "run. Put 'state' on a local disk",
                path=state,
            )
    runs = sorted((state / "runs").iterdir()) if (state / "runs").is_dir() else []
    busy = [run.name for run in runs if is_being_written(run)]
    if busy:
        return Caution(
            f"a process holds the run {', '.join(busy)}: a running job, or one that did not end. A new job waits "
            "90 s for it; `medfl federate stop KIT` ends it"
        )
    return "they work, and no process holds a run"


def check_kit_locks(kit: Path) -> str:
    """Check whether NVFlare's records of running processes are true.

    After a power cut another process may have the recorded id.
    """
    running = processes(kit)
    left = [name for name in PID_FILES if (kit / name).is_file()]
    if running:
        return f"the kit's process {running[0]} is running"
    if left:
        return f"no process is running; {', '.join(left)} of a dead process will be removed at the next start"
    return "no process is running, and a dead process left no file"
