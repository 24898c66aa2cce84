"""Entries of a site's audit file, one on each line, in the order in which they were written."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, ValidationError

from medfl.errors import StoreError
from medfl.records.record import Record


class SentTensors(Record):
    """Sizes of the tensors of one kind that left a site in a message.

    Attributes:
        tensors: Number of tensors.
        values: Number of values in all of them.
        bytes: Number of bytes of all of them.
    """

    tensors: int
    values: int
    bytes: int


class SpentBudget(Record):
    """A site's privacy account after a message: the guarantee, and the budget spent on the site's data.

    Attributes:
        unit: Privacy unit: the data that the guarantee protects, for example ``site`` or ``sample``.
        adjacency: Definition of neighbouring data sets: ``add_remove`` or ``replace``.
        delta: Probability that the guarantee fails.
        epsilon: Epsilon that the current run has spent, or None if no bound is known.
        composed: Epsilon that all runs on the data have spent together, or None if no bound is known.
        total_epsilon: Budget of all runs together, or None if the site has none.
    """

    unit: str
    adjacency: str
    delta: float
    epsilon: float | None
    composed: float | None
    total_epsilon: float | None


class AuditEntry(Record):
    """A message that a site received, answered, refused or sent.

    Attributes:
        time: UTC time in ISO format.
        site: Name of the site.
        sender: Name of the participant that sent the message, or None for a message that the site sends.
        receiver: Name of the site that receives the message, or None for a message that the site received.
        kind: Kind of the message, for example ``step``, or ``peer_message`` for a message between sites.
        outcome: Action of the site. ``answered``: it replied to the server. ``accepted``: it stored a peer message.
            ``sent``: it sent a peer message. ``refused``: it refused a message.
        run: Name of the run, of the federated statistics or of the evaluation, or None before the site knows it.
        method: Name of the method.
        given_by: Where the run's overrides come from, as the offer states it, for example ``command line``.
        bundle: Name of the bundle.
        bundle_sha256: SHA-256 of the bundle's configurations and code.
        round: Number of the round.
        work: Operation that the server requested, for example training.
        leaves: Maps each kind of tensor that left the site, the first part of the tensors' names, to the sizes.
        names: Names of the tensors that left; empty if they equal those of the previous message with tensors.
        tells: Names of the metadata fields that left in the message.
        bytes: Size of the message in bytes.
        budget: The site's privacy account after the message.
        why: Reason for a refusal.
    """

    time: str
    site: str
    sender: str | None = None
    receiver: str | None = None
    kind: str
    outcome: Literal["answered", "accepted", "sent", "refused"]
    run: str | None = None
    method: str | None = None
    given_by: str | None = None
    bundle: str | None = None
    bundle_sha256: str | None = None
    round: JsonValue = None
    work: JsonValue = None
    leaves: dict[str, SentTensors] = {}
    names: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()
    bytes: int | None = None
    budget: SpentBudget | None = None
    why: str | None = None


def add_entry(path: Path, entry: AuditEntry) -> None:
    """Append an entry and flush it to the disk. Several processes may append to one file.

    Args:
        path: Path of the file; only its owner can read a new file.
        entry: The entry.

    Raises:
        StoreError: If the entry can't be written. The file may then end with an unreadable line.
    """
    line = json.dumps(entry.model_dump(mode="json", exclude_defaults=True)).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            end = os.fstat(descriptor).st_size
            is_torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
            file.write((b"\n" if is_torn else b"") + line)
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(
            "unwritable_file",
            f"Could not write a line to '{path}': {error.strerror}. Free some space or permit writing there.",
            path=path,
            reason=error.strerror,
        ) from error


def read_entries(path: Path) -> list[AuditEntry | None]:
    """Return all entries of a file. A line that is not a valid entry is None, as after a killed process or an edit.

    Raises:
        StoreError: If the file can't be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise StoreError(
            "unreadable_file", f"Could not read '{path}': {error.strerror}.", path=path, reason=error.strerror
        ) from error
    return [_parse(line) for line in lines]


def _parse(line: bytes) -> AuditEntry | None:
    """Return the entry in a line, or None if the line is invalid."""
    try:
        return AuditEntry.model_validate_json(line)
    except (ValidationError, RecursionError):
        return None
