"""Observing hooks of a run between machines: at the server while it runs, and where it is followed once results come.

The server calls those of its own plugins with its own run folder, at the same places and with the same contents as a
run on one machine. Each call is a line in ``observed.jsonl`` of the run folder; who submitted the run gets the file
with the results, and then the same calls are made there, with that run folder and with what MONAI's ``--tracking`` was
told there. No address that one party names is ever opened by another.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from medfl.engine.evaluation import Row
from medfl.plugins import Registry, load_plugins
from medfl.records.run_file import Provenance, RunFile
from medfl.records.summary import Summary
from medfl.types import Meta
from medfl_flare.records.submission import (
    HookCall,
    MetricRow,
    ObserverState,
    RoundEnded,
    RunEnded,
    RunStarted,
    hook_arguments,
    read_hook_call,
)

logger = logging.getLogger(__name__)

OBSERVED = "observed.jsonl"
"""The calls, in the run folder."""


class Observers:
    """Calls the hooks of one participant's plugins, and writes the calls down.

    Args:
        registry: The plugins.
        folder: The run folder.
    """

    def __init__(self, registry: Registry, folder: Path) -> None:
        self._registry, self._folder = registry, folder

    def run_started(self, provenance: Provenance) -> None:
        """Report that the run begins or continues.

        Args:
            provenance: Where its settings come from.
        """
        values = {name: setting.value for name, setting in provenance.settings.items()}
        self._call(RunStarted(settings=values))

    def round_ended(self, round_: int, rows: list[Row]) -> None:
        """A round is over.

        Args:
            round_: Its number, from 1.
            rows: Of metrics.
        """
        self._call(RoundEnded(round=round_, rows=tuple(MetricRow(**row._asdict()) for row in rows)))

    def run_ended(self, status: str) -> None:
        """The run is over."""
        self._call(RunEnded(status=status))

    def _call(self, call: HookCall) -> None:
        try:
            _add(self._folder / OBSERVED, call)
        except OSError as error:
            logger.warning("'%s' can't be written (%s): who follows the run misses a call.", OBSERVED, error.strerror)
        _notify(self._registry, call, self._folder, {})


def keep_tracking(out: Path, tracking: Meta) -> None:
    """Keep what tracking was told for the calls to come.

    Args:
        out: The run folder of who submits.
        tracking: From `medfl.bundle.handlers.read_tracking`.
    """
    _state(out).model_copy(update={"tracking": tracking}).write(out / ObserverState.NAME)


def call_observers(out: Path, registry: Registry) -> None:
    """Make the calls that came with a run's results and were not made here yet.

    Args:
        out: The run folder of who submitted the run.
        registry: The plugins here.
    """
    state = _state(out)
    calls = list(_calls(out / OBSERVED))
    for call in calls[state.calls if state.calls <= len(calls) else 0 :]:
        _notify(registry, call, out, state.tracking)
    state.model_copy(update={"calls": len(calls)}).write(out / ObserverState.NAME)


def show_results(summary: Summary, out: Path) -> None:
    """Write the report of a run whose results have come, call observers, and print the scores.

    Args:
        summary: Summary of the run.
        out: Run folder of the user who submitted the run.
    """
    from medfl.engine.runs.console import show_scores
    from medfl_report.page import write_report

    write_report([out])
    call_observers(out, load_plugins())
    run = RunFile.read(out / RunFile.NAME)
    show_scores(summary, run.identity.task.metrics, out)


def _notify(registry: Registry, call: HookCall, folder: Path, tracking: Meta) -> None:
    more = {"tracking": tracking} if isinstance(call, RunStarted) else {}
    registry.notify(call.hook, run_folder=str(folder), **hook_arguments(call), **more)


def _state(out: Path) -> ObserverState:
    path = out / ObserverState.NAME
    return ObserverState.read(path) if path.is_file() else ObserverState()


def _add(path: Path, call: HookCall) -> None:
    """Add a line; one that a kill cut off stays alone."""
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" * torn + json.dumps(call.to_json()).encode() + b"\n")


def _calls(path: Path) -> Iterator[HookCall]:
    """Yield the calls of a file that another participant wrote; lines that are not valid are skipped."""
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        if (call := read_hook_call(line)) is not None:
            yield call
