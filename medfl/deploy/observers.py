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
from typing import Any

from medfl.core.evaluation import Row
from medfl.plugins import Registry, load_plugins
from medfl.records.run_file import Provenance, RunFile
from medfl.records.summary import Summary
from medfl.types import Meta
from medfl.utils.files import write_json

logger = logging.getLogger(__name__)

OBSERVED = "observed.jsonl"
"""The calls, in the run folder."""

CALLED = "observers.json"
"""At the one who submitted the run: what tracking was told, and how many of the calls were made there."""

CALLS: dict[str, dict[str, type]] = {
    "medfl_run_started": {"settings": dict},
    "medfl_round_ended": {"round": int, "rows": list},
    "medfl_run_ended": {"status": str},
}
"""Hook to what a line holds beside its name, and of which type each is."""


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
        self._call("medfl_run_started", {"settings": values})

    def round_ended(self, round_: int, rows: list[Row]) -> None:
        """A round is over.

        Args:
            round_: Its number, from 1.
            rows: Of metrics.
        """
        self._call("medfl_round_ended", {"round": round_, "rows": [row._asdict() for row in rows]})

    def run_ended(self, status: str) -> None:
        """The run is over."""
        self._call("medfl_run_ended", {"status": status})

    def _call(self, hook: str, facts: Meta) -> None:
        try:
            _add(self._folder / OBSERVED, {"hook": hook} | facts)
        except OSError as error:
            logger.warning("'%s' can't be written (%s): who follows the run misses a call.", OBSERVED, error.strerror)
        _notify(self._registry, hook, self._folder, facts, {})


def keep_tracking(out: Path, tracking: Meta) -> None:
    """Keep what tracking was told for the calls to come.

    Args:
        out: The run folder of who submits.
        tracking: From `medfl.bundle.handlers.read_tracking`.
    """
    write_json(out / CALLED, _called(out) | {"tracking": tracking})


def call_observers(out: Path, registry: Registry) -> None:
    """Make the calls that came with a run's results and were not made here yet.

    Args:
        out: The run folder of who submitted the run.
        registry: The plugins here.
    """
    called = _called(out)
    calls = list(_calls(out / OBSERVED))
    for hook, facts in calls[called["calls"] if called["calls"] <= len(calls) else 0 :]:
        _notify(registry, hook, out, facts, called["tracking"])
    write_json(out / CALLED, called | {"calls": len(calls)})


def show_results(summary: Summary, out: Path) -> None:
    """Write the report of a run whose results have come, call observers, and print the scores.

    Args:
        summary: Summary of the run.
        out: Run folder of the user who submitted the run.
    """
    from medfl.report.page import write_report
    from medfl.runs.console import show_scores

    write_report([out])
    call_observers(out, load_plugins())
    run = RunFile.read(out / RunFile.NAME)
    show_scores(summary, run.identity.task.metrics, out)


def _notify(registry: Registry, hook: str, folder: Path, facts: Meta, tracking: Meta) -> None:
    more = {"tracking": tracking} if hook == "medfl_run_started" else {}
    registry.notify(hook, run_folder=str(folder), **facts, **more)


def _called(out: Path) -> Meta:
    path = out / CALLED
    known: Meta = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {"tracking": {}, "calls": 0} | known


def _add(path: Path, entry: Meta) -> None:
    """Add a line; one that a kill cut off stays alone."""
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" * torn + json.dumps(entry).encode() + b"\n")


def _calls(path: Path) -> Iterator[tuple[str, Meta]]:
    """The calls of a file that another participant wrote; what is no call is passed over."""
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            entry: Any = json.loads(line)
        except ValueError:
            continue
        hook = entry.pop("hook", None) if isinstance(entry, dict) else None
        if isinstance(hook, str) and CALLS.get(hook) == {name: type(value) for name, value in entry.items()}:
            yield hook, entry
