"""``progress.jsonl`` beside the journal: what happens in a run, for whoever watches it (`medfl.watch`).

A line is an event: ``t`` (seconds since 1970, of the machine that writes), ``event``, and its facts. One process
writes, lines are only added, and a run that goes on adds to them. Nothing of a run hangs on the file: where it can't be
written the run warns once and goes on, and what counts is in the journal. It holds no path and nothing of a patient.

* ``start``: method, seed, rounds, sites, metric, what privacy was promised, who is missing.
* ``work``: these sites were asked to do something; ``beat``: they are at it; ``done``: they have answered.
* ``missing``: from this site nothing usable came, and why.
* ``commit``: a step is saved: which sites it had orders for, which of them are missing, scores, seconds, bytes.
* ``end``: the run is over; ``stop``: an error or an interruption ended it before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from medfl.types import NO_SITES, Meta

if TYPE_CHECKING:  # a terminal that watches needs none of torch
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from medfl.core.carrier import Note
    from medfl.core.evaluation import Row
    from medfl.core.journal import Commit

logger = logging.getLogger(__name__)

PROGRESS = "progress.jsonl"
"""Its name in a run folder."""

VERSION = 1
"""Of the events."""

PART = 1 << 16
"""Bytes of the file that are sent at once."""

COSTS = {"work_seconds": "seconds", "bytes_up": "up", "bytes_down": "down", "bytes_to_peers": "to_peers"}
"""Metric of a site's cost to its name in a commit."""


class ProgressFile:
    """The file, for the process that writes the run.

    Args:
        folder: The run folder.
        clock: Seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock, self._lock = folder / PROGRESS, clock, threading.Lock()
        self._file: int | None = None
        self._torn = self._warned = False

    def note(self, event: str, facts: Meta) -> None:
        """Add an event. Raises nothing: a line that can't be written is lost."""
        try:
            line = json.dumps({"t": round(self._clock(), 3), "event": event} | facts) + "\n"
            with self._lock:
                self._append(line.encode())
        except (OSError, TypeError, ValueError) as error:
            if not self._warned:
                why = error.strerror if isinstance(error, OSError) else type(error).__name__
                logger.warning("'%s' can't be written (%s): `medfl watch` won't see all of the run.", self.path, why)
                self._warned = True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            size = os.fstat(self._file).st_size
            self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"  # a kill cut the last line
        line = b"\n" + line if self._torn else line
        self._torn = True
        self._torn = os.write(self._file, line) != len(line)


@contextlib.contextmanager
def noted(folder: Path, begin: Meta) -> Iterator[Note]:
    """Note a run down for the length of a block, and that it was stopped if an error ends the block.

    Its start comes before its first event. A finished run that is given again has nothing to do, so nothing is noted.

    Args:
        folder: The run folder; the caller holds it.
        begin: The facts of its start, from `begin_facts`.

    Yields:
        A function that adds an event.
    """
    progress, begun = ProgressFile(folder), False

    def note(event: str, facts: Meta) -> None:
        nonlocal begun
        if not begun and event == "end" and progress.path.exists():
            return
        if not begun:
            begun = True
            progress.note("start", begin)
        progress.note(event, facts)

    try:
        yield note
    except BaseException as error:
        note("stop", {"error": type(error).__name__})  # its text may hold a path
        raise
    finally:
        progress.close()


# ---- the facts of events


def begin_facts(identity: Meta, rounds: int, missing: Mapping[str, str] | None = None) -> Meta:
    """The facts of a run's start.

    Args:
        identity: The run's (`medfl.runs.folder.identity`).
        rounds: Of the run.
        missing: Site to why it does not take part so far.
    """
    settings = identity["settings"]
    return {
        "version": VERSION,
        "method": identity["method"],
        "seed": settings["seed"],
        "rounds": rounds,
        "sites": list(identity["sites"]),
        "metric": identity["task"]["metrics"][0],
        "privacy": settings["privacy"],
        "missing": dict(missing or {}),
    }


def commit_facts(commit: Commit, metric: str) -> Meta:
    """The facts of a commit.

    Args:
        commit: It.
        metric: The task's first one; of it the sites' single scores are noted, too.
    """
    facts = {"step": commit.step, "round": commit.round, "rounds_done": commit.rounds_done}
    return facts | {"ordered": commit.ordered, "missing": commit.missing} | row_facts(commit.rows, metric)


def row_facts(rows: Iterable[Row], metric: str) -> Meta:
    """What rows of metrics say, in short.

    Args:
        rows: Of a step.
        metric: As in `commit_facts`.

    Returns:
        ``scored``: the round that was scored; ``scores``: "model split metric" to the mean over the sites where it is
        defined, ``at_server`` the same on the server's test set; ``by_site``: "model split" to site to score, of
        `metric`; ``loss``: mean training loss; ``costs``: site to seconds and bytes. Each only where there is some.
    """
    scored: set[int] = set()
    scores: dict[str, list[float]] = {}
    at_server: dict[str, float] = {}
    by_site: dict[str, dict[str, float]] = {}
    losses: list[float] = []
    costs: dict[str, dict[str, float]] = {}
    for row in rows:
        if not math.isfinite(row.value):
            continue
        if row.moment == "aggregated" and row.split in ("test", "val") and "@" not in row.model:
            scored.add(row.round)
            name = f"{row.model} {row.split} {row.metric}"
            if row.site in NO_SITES:
                at_server[f"{row.site} {name}"] = row.value
                continue
            scores.setdefault(name, []).append(row.value)
            if row.metric == metric:
                by_site.setdefault(f"{row.model} {row.split}", {})[row.site] = row.value
        elif row.split == "train" and row.metric == "loss" and row.moment == "trained":
            losses.append(row.value)
        elif row.split == "train" and row.metric in COSTS:
            costs.setdefault(row.site, {})[COSTS[row.metric]] = row.value
    facts: Meta = {
        "scored": max(scored, default=None),
        "scores": {name: _mean(values) for name, values in scores.items()},
        "at_server": at_server,
        "by_site": by_site,
        "loss": _mean(losses) if losses else None,
        "costs": costs,
    }
    return {name: _rounded(value) for name, value in facts.items() if value not in ({}, None)}


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _rounded(value: float | Meta) -> float | Meta:
    """Numbers with five digits, which is what a picture needs."""
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return value if isinstance(value, int) else float(f"{value:.5g}")


# ---- for whoever follows a run from elsewhere


def read_part(folder: Path, after: int) -> tuple[int, str]:
    """The whole lines of a run's progress behind a place, `PART` bytes at most.

    Args:
        folder: The run folder.
        after: Bytes that are known already.

    Returns:
        Where the lines begin, which is 0 if the file is shorter than what is known and so another one, and they; empty
        if there is nothing new.
    """
    with contextlib.suppress(OSError), (folder / PROGRESS).open("rb") as file:
        start = after if after <= file.seek(0, os.SEEK_END) else 0
        file.seek(start)
        part = file.read(PART)
        return start, part[: part.rfind(b"\n") + 1].decode(errors="replace")
    return after, ""


@dataclass
class Mirror:
    """A copy of a run's progress on another machine, that grows as the run is followed.

    Attributes:
        folder: Where the copy lies; it must exist.
    """

    folder: Path

    @property
    def known(self) -> int:
        """Bytes that are here."""
        with contextlib.suppress(OSError):
            return (self.folder / PROGRESS).stat().st_size
        return 0

    def add(self, start: object, text: object) -> None:
        """Add what came (`read_part`); anything else is passed over, and so is a disk that is full."""
        if not isinstance(text, str) or not 0 < len(text) <= PART or start not in (0, self.known):
            return
        with contextlib.suppress(OSError), (self.folder / PROGRESS).open("ab" if start else "wb") as file:
            file.write(text.encode())


@dataclass
class Progress:
    """How far a run is, for whoever asks; JSON.

    Attributes:
        state: ``starting``, ``running``, ``finished``, ``incomplete``, ``diverged`` or ``failed``.
        round: Rounds that are over.
        rounds: Rounds of the run.
        scores: Metric to its mean over the sites, of the round that was scored last, on validation images.
        missing: Site to why nothing came from it last.
        message: What went wrong.
        folder: The run's folder, once it is known; it stays here.
    """

    state: str = "starting"
    round: int = 0
    rounds: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    message: str = ""
    folder: Path | None = None

    def facts(self, after: int = 0) -> Meta:
        """As JSON; also while the run changes it.

        Args:
            after: Bytes of the run's progress that whoever asks has already; with those that follow under `EVENTS`.
        """
        from medfl.carriers.remote_messages import EVENTS, START

        facts = {name: value for name, value in vars(self).items() if name != "folder"}
        start, events = (after, "") if self.folder is None else read_part(self.folder, after)
        copies = {"scores": dict(self.scores), "missing": dict(self.missing)}
        return facts | copies | {START: start, EVENTS: events}
