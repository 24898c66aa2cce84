"""Write the progress events of a run to ``progress.jsonl``, for monitors and for other machines.

One process writes the file. It only appends lines (`medfl.records.progress`), also when a run is continued. The run
does not depend on the file: if a line can't be written, the process logs one warning and continues. The state of the
run is in the journal (`medfl.engine.journal`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from medfl.records.progress import (
    MAX_COST,
    MAX_SCORE,
    CommittedStep,
    Event,
    ProgressLine,
    RunEnd,
    RunStart,
    RunStop,
    StepCosts,
    StepMetrics,
)
from medfl.types import NON_SITE_NAMES

if TYPE_CHECKING:  # `medfl monitor` starts faster without torch
    from collections.abc import Callable, Iterable, Iterator

    from medfl.engine.backend import EventListener
    from medfl.engine.evaluation import MetricRow
    from medfl.engine.journal import Commit

logger = logging.getLogger(__name__)

PROGRESS = "progress.jsonl"
"""Name of the file with the progress events in a run folder."""


class ProgressFile:
    """Writer of ``progress.jsonl``.

    Args:
        folder: Path of the run folder.
        clock: Function that returns the seconds since 1970.

    Attributes:
        path: Path of the file.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock, self._lock = folder / PROGRESS, clock, threading.Lock()
        self._file: int | None = None
        self._is_line_torn = self._has_warned = False

    def note(self, event: Event) -> None:
        """Append an event to the file. If the file can't be written, log a warning once; never raise an error."""
        try:
            line = ProgressLine(time=round(self._clock(), 3), event=event).to_bytes()
            with self._lock:
                self._append(line)
        except (OSError, ValueError) as error:
            if not self._has_warned:
                reason = error.strerror if isinstance(error, OSError) else type(error).__name__
                logger.warning(
                    "'%s' can't be written (%s): `medfl monitor` won't show all events of the run.", self.path, reason
                )
                self._has_warned = True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            size = os.fstat(self._file).st_size
            self._is_line_torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"  # by a kill during the write
        line = b"\n" + line if self._is_line_torn else line
        self._is_line_torn = True
        self._is_line_torn = os.write(self._file, line) != len(line)


@contextlib.contextmanager
def record_progress(folder: Path, start: RunStart) -> Iterator[EventListener]:
    """Record the events of a run during a block, and a `RunStop` if an exception ends the block.

    The start event is written before the first event. If a finished run is started again, nothing is written.

    Args:
        folder: Path of the run folder. The caller must hold its lock.
        start: Event of the run's start.

    Yields:
        A function that appends an event.
    """
    progress, has_begun = ProgressFile(folder), False

    def note(event: Event) -> None:
        nonlocal has_begun
        if not has_begun and isinstance(event, RunEnd) and progress.path.exists():
            return
        if not has_begun:
            has_begun = True
            progress.note(start)
        progress.note(event)

    try:
        yield note
    except BaseException as error:
        note(RunStop(error=type(error).__name__))  # the text of the error may contain a path
        raise
    finally:
        progress.close()


# ---- events from commits


def committed_step(commit: Commit, metric: str) -> CommittedStep:
    """Return the progress event of a commit (a step that the server has saved).

    Args:
        commit: The commit.
        metric: First metric of the task, whose scores the event lists for each site.
    """
    return CommittedStep(
        step=commit.step,
        round=commit.round,
        rounds_done=commit.rounds_done,
        requested=tuple(commit.requested),
        unavailable=tuple(commit.missing),
        metrics=step_metrics(commit.rows, metric),
    )


def step_metrics(rows: Iterable[MetricRow], metric: str) -> StepMetrics:
    """Summarise the rows of metrics of a step.

    Values that are not finite or beyond the bounds of an event are left out.

    Args:
        rows: Rows of metrics.
        metric: First metric of the task, whose scores the summary lists for each site.
    """
    scored: set[int] = set()
    scores: dict[str, list[float]] = {}
    server_scores: dict[str, float] = {}
    site_scores: dict[str, dict[str, float]] = {}
    losses: list[float] = []
    costs: dict[str, dict[str, float]] = {}
    for row in rows:
        if not math.isfinite(row.value):
            continue
        if row.moment == "aggregated" and row.split in ("test", "val") and "@" not in row.model:
            scored.add(row.round)
            name = f"{row.model} {row.split} {row.metric}"
            if row.site in NON_SITE_NAMES:
                server_scores[f"{row.site} {name}"] = row.value
                continue
            scores.setdefault(name, []).append(row.value)
            if row.metric == metric:
                site_scores.setdefault(f"{row.model} {row.split}", {})[row.site] = row.value
        elif row.split == "train" and row.metric == "loss" and row.moment == "trained":
            losses.append(row.value)
        elif row.split == "train" and row.metric in StepCosts.model_fields and 0 <= row.value <= MAX_COST:
            costs.setdefault(row.site, {})[row.metric] = _rounded(row.value)
    return StepMetrics(
        scored_round=max(scored, default=None),
        scores=_valid_scores({name: _mean(values) for name, values in scores.items()}),
        server_scores=_valid_scores(server_scores),
        site_scores={name: _valid_scores(values) for name, values in site_scores.items()},
        training_loss=_valid_scores({"loss": _mean(losses)}).get("loss") if losses else None,
        costs={site: StepCosts(**values) for site, values in costs.items()},
    )


def _mean(values: list[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.inf


def _valid_scores(scores: dict[str, float]) -> dict[str, float]:
    """Return the scores within the bounds of an event, rounded."""
    return {name: _rounded(value) for name, value in scores.items() if abs(value) <= MAX_SCORE}


def _rounded(value: float) -> float:
    """Return a number rounded to five digits, which is enough for a plot."""
    return float(f"{value:.5g}")
