"""Record of a study's runs that a cluster's queue holds. `medfl study` writes it, and the monitor reads it."""

from __future__ import annotations

from typing import ClassVar, Literal

from medfl.records.record import FileRecord


class QueuedRuns(FileRecord):
    """Runs of a study that wait for a node of a cluster or work on one, while the command `medfl study` runs.

    The lock of a run folder is not visible on other machines with every file system, so it does not tell whether such a
    run works.

    Attributes:
        places: Maps the folder of each such run, relative to the study's folder, to its place.
    """

    NAME: ClassVar[str] = "queued_runs.json"
    """Name of the file in the study's folder."""
    REPAIR: ClassVar[str] = "Remove it; the study writes it again."
    """Advice for a user whose file is damaged; part of the error message."""

    places: dict[str, Literal["queued", "running"]]
