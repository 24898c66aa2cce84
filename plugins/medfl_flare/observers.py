"""Observing hooks of a distributed run: called at the server during the run, and at the researcher once results arrive.

An observing hook is a function of a plugin that medfl calls when a run begins, after each round, and when the run ends.
The server calls the hooks of its own plugins with its own run folder, at the same places and with the same contents as
a run on one machine. It records each call as a line of ``observed.jsonl`` in the run folder. The researcher who
submitted the run receives this file with the results. The same calls are then made there, with the local run folder and
the local value of MONAI's ``--tracking``. No participant ever opens a tracking address that another participant names.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from medfl.engine.evaluation import MetricRow
from medfl.plugins import Registry, load_plugins
from medfl.records.run_file import Provenance, RunFile
from medfl.records.summary import Summary
from medfl.types import Meta
from medfl_flare.records.submission import (
    HookCall,
    ObserverState,
    RoundEnded,
    RunEnded,
    RunStarted,
    SubmissionRow,
    hook_arguments,
    read_hook_call,
)

logger = logging.getLogger(__name__)

OBSERVED_FILE_NAME = "observed.jsonl"
"""Name of the file of recorded calls in the run folder."""


class Observers:
    """Caller of the observing hooks of the server's plugins, which also records each call for the researcher.

    Args:
        registry: The plugins.
        folder: The run folder.
    """

    def __init__(self, registry: Registry, folder: Path) -> None:
        self._registry, self._folder = registry, folder

    def run_started(self, provenance: Provenance) -> None:
        """Call the hooks ``medfl_run_started``: the run begins or continues.

        Args:
            provenance: Settings of the run with their values and origins.
        """
        values = {name: setting.value for name, setting in provenance.settings.items()}
        self._call(RunStarted(settings=values))

    def round_ended(self, round_: int, rows: list[MetricRow]) -> None:
        """Call the hooks ``medfl_round_ended``: a round has ended.

        Args:
            round_: Number of the round, from 1.
            rows: New rows of ``metrics.csv``.
        """
        self._call(RoundEnded(round=round_, rows=tuple(SubmissionRow(**row._asdict()) for row in rows)))

    def run_ended(self, status: str) -> None:
        """Call the hooks ``medfl_run_ended``: the run has ended with a status, such as ``finished``."""
        self._call(RunEnded(status=status))

    def _call(self, call: HookCall) -> None:
        """Record a call and make it."""
        try:
            _append_call(self._folder / OBSERVED_FILE_NAME, call)
        except OSError as error:
            logger.warning(
                "'%s' can't be written (%s): observers elsewhere miss a call.", OBSERVED_FILE_NAME, error.strerror
            )
        _notify(self._registry, call, self._folder, {})


def keep_tracking(out: Path, tracking: Meta) -> None:
    """Store the value of MONAI's option ``--tracking`` in the run folder, for later calls of hooks on this machine.

    Args:
        out: Run folder of the researcher who submits the run.
        tracking: Value of the option, from `medfl.bundle.stock_features.read_tracking`; empty if tracking is off.
    """
    _read_state(out).model_copy(update={"tracking": tracking}).write(out / ObserverState.NAME)


def call_observers(out: Path, registry: Registry) -> None:
    """Repeat the server's calls of observing hooks on this machine, for the plugins of the researcher.

    The calls are read from the file of recorded calls. Calls that were repeated earlier are skipped.

    Args:
        out: Run folder of the researcher who submitted the run.
        registry: The plugins on this machine.
    """
    state = _read_state(out)
    calls = list(_read_calls(out / OBSERVED_FILE_NAME))
    for call in calls[state.calls if state.calls <= len(calls) else 0 :]:
        _notify(registry, call, out, state.tracking)
    state.model_copy(update={"calls": len(calls)}).write(out / ObserverState.NAME)


def show_results(summary: Summary, out: Path) -> None:
    """Write the report of a run whose results have arrived, call observers, and print the scores.

    Args:
        summary: Summary of the run.
        out: Run folder of the researcher who submitted the run.
    """
    from medfl.engine.runs.console import show_scores
    from medfl_report.page import write_report

    write_report([out])
    call_observers(out, load_plugins())
    run = RunFile.read(out / RunFile.NAME)
    show_scores(summary, run.identity.task.metrics, out)


def _notify(registry: Registry, call: HookCall, folder: Path, tracking: Meta) -> None:
    """Call one hook of all plugins."""
    more = {"tracking": tracking} if isinstance(call, RunStarted) else {}
    registry.notify(call.hook, run_folder=str(folder), **hook_arguments(call), **more)


def _read_state(out: Path) -> ObserverState:
    """Return the stored state of the observers, or the initial one."""
    path = out / ObserverState.NAME
    return ObserverState.read(path) if path.is_file() else ObserverState()


def _append_call(path: Path, call: HookCall) -> None:
    """Append a line; an incomplete line of a killed process stays separate."""
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" * torn + json.dumps(call.to_json()).encode() + b"\n")


def _read_calls(path: Path) -> Iterator[HookCall]:
    """Yield the calls in a file that another participant wrote; invalid lines are skipped."""
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        if (call := read_hook_call(line)) is not None:
            yield call
