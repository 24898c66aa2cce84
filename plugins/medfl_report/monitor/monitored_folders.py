"""Monitored run folders: their event files are read incrementally as the runs write them.

A startup kit is the folder with which the server or a site of a distributed run is started on its own machine; the runs
are below this folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from medfl.engine.runs.progress import PROGRESS
from medfl.errors import MedflError, StoreError
from medfl.records.ledger import Ledger
from medfl.records.progress import ProgressLine
from medfl.records.run_file import RunFile
from medfl.settings import Settings
from medfl.utils.locks import LOCK_FILE, is_being_written
from medfl.utils.text import visible
from medfl_report.monitor.queued_runs import QueuedRuns
from medfl_report.monitor.run_state import RunState
from medfl_report.monitor.run_view import RunView, make_run_view

RESCAN_SECONDS = 10.0
"""Seconds between two searches for new runs below a folder."""

MAX_DEPTH = 5
"""Maximum depth below the monitored folder at which runs are searched for; the runs of a study are 3 levels below."""


@dataclass
class MonitoredRun:
    """A run folder and the state after the events that were read from it so far.

    Attributes:
        folder: The run folder.
        name: Name of the run, for display.
        clock: Function that returns the seconds since 1970.
        state: State after the events so far.
        place: ``queued`` or ``running`` if a study waits for the run on a cluster, else None.
    """

    folder: Path
    name: str
    clock: Callable[[], float] = time.time
    state: RunState = field(default_factory=RunState)
    place: str | None = None
    _bytes_read: int = 0
    """Bytes of the event file that were read, all of them whole lines."""
    _file_id: tuple[int, int] = (0, 0)
    """Device and inode of the event file."""
    _modified_at: float = 0.0
    """Time of the event file's last change, seconds since 1970, by the clock of this machine."""
    _epsilons: dict[str, tuple[object, float]] = field(default_factory=dict)
    """Maps each site to a cache key and the epsilon that was computed for it."""

    def read_events(self) -> bool:
        """Read the new lines of the event file and update `state`. A replaced or truncated file is read from its start.

        Returns:
            True if there was at least one new line.
        """
        with contextlib.suppress(FileNotFoundError), (self.folder / PROGRESS).open("rb") as file:
            stat = os.fstat(file.fileno())
            is_other_file = (stat.st_dev, stat.st_ino) != self._file_id or stat.st_size < self._bytes_read
            if is_other_file:
                self.state, self._bytes_read, self._file_id = RunState(), 0, (stat.st_dev, stat.st_ino)
            file.seek(self._bytes_read)
            content = file.read()
            lines = content[: content.rfind(b"\n") + 1]  # without a line that is still being written
            self._bytes_read, self._modified_at = self._bytes_read + len(lines), stat.st_mtime
            for line in lines.splitlines():
                if (entry := ProgressLine.from_bytes(line)) is not None:  # None: a kill may have cut the line
                    self.state.apply(entry.time, entry.event)
            return bool(lines)
        return False

    @property
    def has_writer(self) -> bool | None:
        """True if a process holds the lock of the run folder; None if the run is on another machine."""
        return is_being_written(self.folder) if (self.folder / LOCK_FILE).is_file() else None

    @property
    def now(self) -> float:
        """Current time, seconds since 1970, by the clock of the machine that wrote the events.

        It is the time of the last event plus the age of the event file, so the clocks of two machines may differ.
        """
        return self.state.last_event_at + max(0.0, self.clock() - self._modified_at)

    def view(self) -> RunView:
        """Return the current view of the run."""
        has_writer = self.has_writer
        if self.place == "running" and not has_writer:
            has_writer = None  # perhaps a process of another machine
        epsilons, is_queued = self._spent_epsilons(), self.place == "queued"
        return make_run_view(self.name, self.state, self.now, has_writer, epsilons, is_queued)

    def _spent_epsilons(self) -> dict[str, float]:
        """Return the epsilon spent on each site's data; sites for which this machine can't know it are left out."""
        if self.state.privacy is None:
            return {}
        spent = {}
        for name, site in self.state.sites.items():
            path = self.folder / "state" / name / Ledger.NAME
            key: object = path.stat().st_mtime_ns if path.is_file() else site.replies
            if name not in self._epsilons or self._epsilons[name][0] != key:
                with contextlib.suppress(MedflError, ValueError, OSError):
                    self._epsilons[name] = key, self._compute_epsilon(name, path)
            if name in self._epsilons:
                spent[name] = self._epsilons[name][1]
        return {name: value for name, value in spent.items() if value == value}  # without NaN

    @property
    def _settings(self) -> Settings:
        """Settings of the run, or only rounds and privacy from the events if ``run.json`` is missing or damaged."""
        try:
            return RunFile.read(self.folder / RunFile.NAME).settings
        except MedflError:
            return Settings(rounds=self.state.rounds, privacy=self.state.privacy)

    def _compute_epsilon(self, name: str, path: Path) -> float:
        """Compute a site's epsilon from its privacy budget ledger, or from its replies if the ledger is elsewhere.

        Args:
            name: Name of the site.
            path: Path of the site's ledger.

        Returns:
            NaN if the number of replies does not determine epsilon.
        """
        from medfl.privacy.composition import NoisedReleases, epsilon
        from medfl.privacy.policy import policy_of

        privacy = self.state.privacy
        assert privacy is not None  # checked by the caller
        if path.is_file():
            parts = tuple(NoisedReleases.from_entry(entry) for entry in Ledger.load(path, name).entries.values())
        else:
            released = policy_of(self._settings).releases_of_replies(self.state.sites[name].replies)
            if released is None:
                return float("nan")
            parts = (released,)
        return epsilon(parts, privacy.delta, privacy.adjacency)


class MonitoredFolder:
    """A run folder, or a folder with several runs below it, such as a study or the folder of a startup kit.

    Args:
        folder: The folder.
        clock: Function that returns the seconds since 1970.
        gets_more_runs: Whether runs can start there at any time, as at the server or a site of a federation. Then the
            folder need not exist yet, and monitoring never ends by itself.

    Attributes:
        folder: The folder.
        gets_more_runs: Whether runs can start there at any time.
        is_single_run: Whether the folder is itself a run folder.
        runs: Mapping from the folder of each run that was found so far to the run.

    Raises:
        StoreError: If the folder does not exist, or is a run folder without an event file.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time, gets_more_runs: bool = False) -> None:
        self.folder, self._clock, self._scanned_at, self.gets_more_runs = folder, clock, 0.0, gets_more_runs
        self.is_single_run = (folder / "run.json").is_file() or (folder / PROGRESS).is_file()
        self.runs: dict[Path, MonitoredRun] = {}
        if not folder.is_dir() and not gets_more_runs:
            raise StoreError(
                "missing_folder",
                f"expected a folder at '{folder}', but there is none. Give the folder of a run, a study or a startup "
                "kit.",
                path=folder,
            )
        if self.is_single_run and not (folder / PROGRESS).is_file():
            raise StoreError(
                "missing_file",
                f"the run in '{folder}' has no {PROGRESS}, so it can't be monitored: it has not started, or an earlier "
                "version of medfl made it. `medfl status` shows its progress.",
                path=folder / PROGRESS,
            )
        self.read_events()

    def read_events(self) -> bool:
        """Read the new events of all runs, and search for new runs every `RESCAN_SECONDS`.

        Returns:
            True if any run had new events.
        """
        if not self._scanned_at or self._clock() - self._scanned_at > RESCAN_SECONDS:
            self._scanned_at = self._clock()
            for folder in [self.folder] if self.is_single_run else sorted(_find_runs(self.folder)):
                name = visible(str(folder) if folder == self.folder else folder.relative_to(self.folder).as_posix())
                self.runs.setdefault(folder, MonitoredRun(folder, name, self._clock))
        places = self._read_queue()
        for folder, run in self.runs.items():
            run.place = places.get(folder)
        has_news = [run.read_events() for run in self.runs.values()]
        return any(has_news)

    def views(self) -> list[RunView]:
        """Return the current views of the runs, sorted by name."""
        return [run.view() for run in sorted(self.runs.values(), key=lambda run: run.name)]

    def _read_queue(self) -> dict[Path, str]:
        """Return the place of each run that a study waits for on a cluster; empty if no such study runs."""
        if not self.has_writer:
            return {}
        try:
            places = QueuedRuns.read(self.folder / QueuedRuns.NAME).places
        except StoreError:  # the study runs on this machine, or the file is of no use
            return {}
        return {self.folder / folder: place for folder, place in places.items()}

    @property
    def has_writer(self) -> bool:
        """True if the folder has several runs and a process holds the lock of the folder, as a study does."""
        return not self.is_single_run and is_being_written(self.folder)


def _find_runs(folder: Path) -> list[Path]:
    """Return the folders with an event file, down to `MAX_DEPTH`; folders within a run folder are not searched."""
    runs = []
    for place, names, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        if PROGRESS in files:
            runs.append(Path(place))
        if PROGRESS in files or depth >= MAX_DEPTH:
            names.clear()
    return runs
