"""A file of lines that is only added to, in which each line holds the SHA-256 of the line before, and its own.

A line that is changed does not fit its own hash, and one that is removed, inserted or sealed anew does not fit its
neighbour's. Lines that are missing at the end break nothing, and who may write the file can write all of it anew: so
note the hash of the last line elsewhere now and then, and see whether it is still among the hashes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from medfl.errors import StoreError
from medfl.types import Meta

START = "0" * 64
"""What stands in the first line for the line before."""

BEFORE = "before"
"""Key of the hash of the line before."""

SEAL = b', "sha256": "'
"""What stands before a line's own hash, which is that of the line's bytes up to here."""


@dataclass
class Chain:
    """What is in such a file.

    Attributes:
        entries: The lines, without their hashes; an empty one for a torn line.
        hashes: SHA-256 of each line with its own hash, which the next line holds.
        broken: Numbers of lines, from 1, that do not fit themselves or the line before.
        torn: Numbers of lines that are no whole ones; a kill or a full disk leaves such a line, and the chain goes on.
    """

    entries: list[Meta] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)


def add_line(path: Path, entry: Meta) -> str:
    """Add a line, flushed to the disk when this returns. Several processes may add to one file.

    Args:
        path: The file; made, for its owner alone, if it is not there.
        entry: The line's facts, JSON.

    Returns:
        The line's SHA-256.

    Raises:
        StoreError: If it can't be written. A part of it may stand there, as a torn line.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _add(path, entry)
    except OSError as error:
        raise StoreError(
            "unwritable_file",
            f"Could not write a line to '{path}': {error.strerror}. Free some space or permit writing there.",
            path=path,
            reason=error.strerror,
        ) from error


def _add(path: Path, entry: Meta) -> str:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with open(descriptor, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        last = _last_line(file.fileno())
        line = json.dumps({BEFORE: _hash(last) if last else START} | entry).removesuffix("}").encode()
        line += SEAL + _hash(line).encode() + b'"}'
        file.write((b"" if not last or last.endswith(b"\n") else b"\n") + line + b"\n")
        os.fsync(file.fileno())
    return _hash(line)


def _last_line(descriptor: int) -> bytes:
    """The last line with its end, if it has one; empty where there is none."""
    end = os.fstat(descriptor).st_size
    content, start = b"", end
    while start > 0 and b"\n" not in content[:-1]:
        size = min(start, 1 << 14)
        start -= size
        content = os.pread(descriptor, size, start) + content
    return content[content.rfind(b"\n", 0, -1) + 1 :]


def read(path: Path) -> Chain:
    """Read such a file and check its chain.

    Raises:
        StoreError: If it can't be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise StoreError(
            "unreadable_file", f"Could not read '{path}': {error.strerror}.", path=path, reason=error.strerror
        ) from error
    chain, expected = Chain(), START
    for number, line in enumerate(lines, 1):
        body, seal, own = line.rpartition(SEAL)
        entry = _parse(line) if seal else None
        if entry is None:
            chain.torn.append(number)
        elif entry.pop(BEFORE, None) != expected or own != _hash(body).encode() + b'"}':
            chain.broken.append(number)
        chain.entries.append({key: value for key, value in (entry or {}).items() if key != "sha256"})
        expected = _hash(line)
        chain.hashes.append(expected)
    return chain


def _parse(line: bytes) -> Meta | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _hash(line: bytes) -> str:
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()
