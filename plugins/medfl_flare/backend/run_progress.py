"""Progress of a run on another machine: parts of the server's ``progress.jsonl`` for clients that follow the run."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from medfl.engine.runs.progress import PROGRESS
from medfl.types import Meta
from medfl_flare.backend.protocol_messages import LINES_KEY, POSITION_KEY

MAX_PART_BYTES = 1 << 16
"""Maximum number of bytes of the file in one response."""


def read_part(folder: Path, after: int) -> tuple[int, str]:
    """Read the complete lines of a run's progress file after a position, at most `MAX_PART_BYTES` bytes.

    Args:
        folder: The run folder.
        after: Number of bytes that the caller already has.

    Returns:
        The position of the first line, and the lines. The position is 0 if the file is shorter than `after`, as it is
        then a new file. The lines are empty if there is nothing new.
    """
    with contextlib.suppress(OSError), (folder / PROGRESS).open("rb") as file:
        start = after if after <= file.seek(0, os.SEEK_END) else 0
        file.seek(start)
        part = file.read(MAX_PART_BYTES)
        return start, part[: part.rfind(b"\n") + 1].decode(errors="replace")
    return after, ""


@dataclass
class ProgressCopy:
    """A local copy of a remote run's progress file, which grows while the run is followed.

    Attributes:
        folder: Folder of the copy; it must exist.
    """

    folder: Path

    @property
    def known(self) -> int:
        """Size of the copy in bytes."""
        with contextlib.suppress(OSError):
            return (self.folder / PROGRESS).stat().st_size
        return 0

    def add(self, start: object, text: object) -> None:
        """Append a response of the server (`read_part`) to the copy. Invalid values and write errors are ignored."""
        if not isinstance(text, str) or not 0 < len(text) <= MAX_PART_BYTES or start not in (0, self.known):
            return
        with contextlib.suppress(OSError), (self.folder / PROGRESS).open("ab" if start else "wb") as file:
            file.write(text.encode())


@dataclass
class RunStatus:
    """Status of a run at the server, for clients that follow it.

    Attributes:
        state: ``starting``, ``running``, ``finished``, ``incomplete``, ``diverged`` or ``failed``.
        round: Number of finished rounds.
        rounds: Number of rounds of the run.
        scores: Maps each metric to its mean over the sites' validation images, in the last scored round.
        missing: Maps each unavailable site to the reason.
        message: Text of the error, or empty.
        folder: The run's folder, or None until it is known. It is not sent.
    """

    state: str = "starting"
    round: int = 0
    rounds: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    message: str = ""
    folder: Path | None = None

    def to_meta(self, after: int = 0) -> Meta:
        """Return the status as JSON values. Another thread may change it meanwhile.

        Args:
            after: Number of bytes of the progress file that the client already has. The following lines are added under
                `LINES_KEY`.
        """
        facts = {name: value for name, value in vars(self).items() if name != "folder"}
        start, events = (after, "") if self.folder is None else read_part(self.folder, after)
        copies = {"scores": dict(self.scores), "missing": dict(self.missing)}
        return facts | copies | {POSITION_KEY: start, LINES_KEY: events}
