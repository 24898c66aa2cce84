"""Journal of a store: one line for each event, on the disk before the next event starts.

The last line may be incomplete after a crash. It is dropped, and its event is repeated. All lines contain pseudonyms
only.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from medfl.errors import DamagedError, StoreError
from medfl_pacs.store_records import DecisionRecord, InstanceRecord, JournalLine, SeriesRecord


class StoreJournal:
    """Events of a store.

    Args:
        path: File of the journal; created if it does not exist.

    Attributes:
        instances: Maps each series to its instances' newest records by instance.
        series: Maps each complete series to its newest record.
        decisions: Maps instances to the decisions of a person.

    Raises:
        DamagedError: If a complete line can't be read.
        StoreError: If the file can't be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instances: dict[str, dict[str, InstanceRecord]] = {}
        self.series: dict[str, SeriesRecord] = {}
        self.decisions: dict[str, DecisionRecord] = {}
        try:
            content = path.read_bytes() if path.exists() else b""
            complete = content.rfind(b"\n") + 1
            if complete < len(content):
                os.truncate(path, complete)
        except OSError as error:
            raise self._unwritable(error) from None
        for number, line in enumerate(content[:complete].splitlines(), 1):
            try:
                self._apply(JournalLine.model_validate_json(line))
            except ValidationError:
                raise DamagedError(
                    "damaged_file",
                    f"Line {number} of '{path}' is damaged. Restore the file from a copy, or retrieve the images into "
                    "a new store.",
                    path=path,
                    line=number,
                ) from None

    def append(self, record: InstanceRecord | SeriesRecord | DecisionRecord) -> None:
        """Add an event, and write it to the disk.

        Raises:
            StoreError: If the file can't be written.
        """
        if isinstance(record, InstanceRecord):
            line = JournalLine(instance=record)
        elif isinstance(record, SeriesRecord):
            line = JournalLine(series=record)
        else:
            line = JournalLine(decision=record)
        content = line.model_dump_json(exclude_defaults=True).encode() + b"\n"
        size = None
        try:
            with self.path.open("ab", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if file.write(content) != len(content):
                    raise OSError(28, os.strerror(28))
                os.fsync(file.fileno())
        except OSError as error:
            if size is not None:
                os.truncate(self.path, size)  # an incomplete line must not precede the next one
            raise self._unwritable(error) from None
        self._apply(line)

    def _apply(self, line: JournalLine) -> None:
        """Update the attributes with an event."""
        if line.instance is not None:
            self.instances.setdefault(line.instance.series, {})[line.instance.instance] = line.instance
        if line.series is not None:
            self.series[line.series.series] = line.series
        if line.decision is not None:
            self.decisions[line.decision.instance] = line.decision

    def _unwritable(self, error: OSError) -> StoreError:
        """Return the error for a journal that can't be read or written."""
        return StoreError(
            "unwritable_file",
            f"Could not write '{self.path}': {error.strerror}. Everything saved before is still valid: free some space "
            "or permit writing there, then repeat the same command.",
            path=self.path,
            reason=error.strerror,
        )
