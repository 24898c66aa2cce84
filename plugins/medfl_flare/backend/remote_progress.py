"""Progress of a run on another machine: parts of ``progress.jsonl`` that the server sends to those who follow it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from medfl.engine.runs.progress import PROGRESS
from medfl.types import Meta
from medfl_flare.backend.remote_messages import EVENTS, START

PART = 1 << 16
"""Bytes of the file that are sent at once."""


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
        facts = {name: value for name, value in vars(self).items() if name != "folder"}
        start, events = (after, "") if self.folder is None else read_part(self.folder, after)
        copies = {"scores": dict(self.scores), "missing": dict(self.missing)}
        return facts | copies | {START: start, EVENTS: events}
