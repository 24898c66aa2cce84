"""What is watched: a run's folder, or all runs below one, read further as they grow."""

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
from medfl.utils.locks import LOCK, being_written
from medfl.utils.text import visible
from medfl_report.monitor.state import RunState
from medfl_report.monitor.view import View, make_view

AGAIN = 10.0
"""Seconds between two looks for further runs below a folder."""

DEEPEST = 5
"""Folders below the one that is watched in which a run is looked for: a study's are three below."""


@dataclass
class MonitoredRun:
    """A run's folder, and what was read of its events so far.

    Attributes:
        folder: It.
        name: What to call it.
        clock: Seconds since 1970.
        state: What the events came to.
    """

    folder: Path
    name: str
    clock: Callable[[], float] = time.time
    state: RunState = field(default_factory=RunState)
    _read: int = 0
    _file: tuple[int, int] = (0, 0)
    _changed: float = 0.0
    _epsilons: dict[str, tuple[object, float]] = field(default_factory=dict)

    def look(self) -> bool:
        """Read what is new; whether there was anything."""
        with contextlib.suppress(FileNotFoundError), (self.folder / PROGRESS).open("rb") as file:
            facts = os.fstat(file.fileno())
            if (facts.st_dev, facts.st_ino) != self._file or facts.st_size < self._read:  # another file: from the start
                self.state, self._read, self._file = RunState(), 0, (facts.st_dev, facts.st_ino)
            file.seek(self._read)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read, self._changed = self._read + len(whole), facts.st_mtime
            for line in whole.splitlines():
                if (entry := ProgressLine.from_bytes(line)) is not None:  # a kill may have cut the line
                    self.state.apply(entry.time, entry.event)
            return bool(whole)
        return False

    @property
    def writing(self) -> bool | None:
        """Whether a process holds the folder; None where the run is on another machine, and only followed from here."""
        return being_written(self.folder) if (self.folder / LOCK).is_file() else None

    @property
    def now(self) -> float:
        """The time by the clock that the events were timed by, which may be another machine's."""
        return self.state.last + max(0.0, self.clock() - self._changed)

    def view(self) -> View:
        """What is shown of it now."""
        return make_view(self.name, self.state, self.now, self.writing, self._spent())

    def _spent(self) -> dict[str, float]:
        """Site to the epsilon that is spent of its data, where this machine can know."""
        if self.state.privacy is None:
            return {}
        spent = {}
        for name, site in self.state.sites.items():
            path = self.folder / "state" / name / Ledger.NAME
            key: object = path.stat().st_mtime_ns if path.is_file() else site.replies
            if name not in self._epsilons or self._epsilons[name][0] != key:
                with contextlib.suppress(MedflError, ValueError, OSError):
                    self._epsilons[name] = key, self._epsilon_of(name, path)
            if name in self._epsilons:
                spent[name] = self._epsilons[name][1]
        return {name: value for name, value in spent.items() if value == value}

    @property
    def _settings(self) -> Settings:
        """The settings of the run, or what the events tell of them if there is no run file."""
        try:
            return RunFile.read(self.folder / RunFile.NAME).settings
        except MedflError:
            return Settings(rounds=self.state.rounds, privacy=self.state.privacy)

    def _epsilon_of(self, name: str, path: Path) -> float:
        """Return epsilon by the account of a site, or by its replies if that is elsewhere; NaN if these don't tell."""
        from medfl.privacy.composition import Part, epsilon
        from medfl.privacy.policy import policy_of

        privacy = self.state.privacy
        assert privacy is not None  # checked by the caller
        if path.is_file():
            parts = tuple(Part.from_entry(entry) for entry in Ledger.load(path, name).entries.values())
        else:
            released = policy_of(self._settings).releases_of_replies(self.state.sites[name].replies)
            if released is None:
                return float("nan")
            parts = (released,)
        return epsilon(parts, privacy.delta, privacy.adjacency)


class MonitoredFolder:
    """A run's folder, or one with several runs below it: a study's, or that of a participant's runs.

    Args:
        folder: It.
        clock: Seconds since 1970.
        stays: Whether runs come and go there, as at a server or a site; the folder may not be there yet.

    Raises:
        StoreError: If there is no such folder, or it is a run's without events.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time, stays: bool = False) -> None:
        self.folder, self._clock, self._looked, self.stays = folder, clock, 0.0, stays
        self.single = (folder / "run.json").is_file() or (folder / PROGRESS).is_file()
        self.runs: dict[Path, MonitoredRun] = {}
        if not folder.is_dir() and not stays:
            raise StoreError(
                "missing_folder",
                f"expected a folder at '{folder}', there is none. Give a run's, a study's, or a kit.",
                path=folder,
            )
        if self.single and not (folder / PROGRESS).is_file():
            raise StoreError(
                "missing_file",
                f"'{folder}' holds a run without {PROGRESS}, so there is nothing to watch: it has not begun, or was "
                "made by an earlier version. `medfl status` says how far it is.",
                path=folder / PROGRESS,
            )
        self.look()

    def look(self) -> bool:
        """Read what is new, and find runs that are new; whether there was anything."""
        if not self._looked or self._clock() - self._looked > AGAIN:
            self._looked = self._clock()
            for folder in [self.folder] if self.single else sorted(_runs_below(self.folder)):
                name = visible(str(folder) if folder == self.folder else folder.relative_to(self.folder).as_posix())
                self.runs.setdefault(folder, MonitoredRun(folder, name, self._clock))
        news = [run.look() for run in self.runs.values()]
        return any(news)

    def views(self) -> list[View]:
        """What is shown of the runs, in the order of their names."""
        return [run.view() for run in sorted(self.runs.values(), key=lambda run: run.name)]

    @property
    def at_work(self) -> bool:
        """Whether a process works in the folder as a whole, as a study does between two runs."""
        return not self.single and being_written(self.folder)


def _runs_below(folder: Path) -> list[Path]:
    """Folders with a run's events; what is within such a folder is not looked at."""
    runs = []
    for place, names, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        if PROGRESS in files:
            runs.append(Path(place))
        if PROGRESS in files or depth >= DEEPEST:
            names.clear()
    return runs
