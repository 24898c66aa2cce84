"""Signs of life of a piece of work: every so often a thread says whether it moves, and how far it is.

Whoever has work done opens a `Pulse` around it; what does the work counts its batches by `counted`. Neither needs to
know the other, and nothing that is computed hangs on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Self, TypeVar

BEAT_SECONDS = 30.0
"""Seconds between two heartbeats."""

T = TypeVar("T")


@dataclass(frozen=True)
class Beat:
    """A heartbeat.

    Attributes:
        doing: What the batches are for, such as ``training``; empty before the first one.
        share: Of these batches, how many are done, in [0, 1]; None where nobody knows how many there are.
        moved: Whether a batch was done since the heartbeat before.
    """

    doing: str = ""
    share: float | None = None
    moved: bool = False


class Pulse:
    """Sends heartbeats for the length of a block, the first one `every` seconds after its start.

    Args:
        send: Gets each heartbeat, in a thread of its own; none comes after the block.
        every: Seconds between two, > 0.
    """

    def __init__(self, send: Callable[[Beat], None], every: float = BEAT_SECONDS) -> None:
        self._send, self._every = send, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._doing, self._done, self._depth = "", 0, 0
        self._total: int | None = None
        self._count = self._counted_before = 0
        self._token: Token[Pulse | None] | None = None

    def __enter__(self) -> Self:
        self._token = _AT_WORK.set(self)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._token is not None
        _AT_WORK.reset(self._token)
        self._over.set()
        self._thread.join()

    def beat(self) -> Beat:
        """How it stands now; the next one says whether it moved since."""
        count, before = self._count, self._counted_before
        self._counted_before = count
        share = None if not self._total else min(1.0, round(self._done / self._total, 2))
        return Beat(self._doing, share, count > before)

    def part(self, batches: Iterable[T], doing: str, total: int | None) -> Iterator[T]:
        """Count batches as they are done. Of batches within batches only the outer ones have a share."""
        self._depth += 1
        outer = self._depth == 1
        if outer:
            self._doing, self._total, self._done = doing, total, 0
        try:
            for batch in batches:
                yield batch
                self._count += 1
                self._done += outer
        finally:
            self._depth -= 1

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._send(self.beat())


_AT_WORK: ContextVar[Pulse | None] = ContextVar("at_work", default=None)
"""The innermost block in whose thread this code runs."""


def counted(batches: Iterable[T], doing: str, total: int | None = None) -> Iterator[T]:
    """The same batches, counted for the `Pulse` around the work if there is one.

    Args:
        batches: One is done when the next one is asked for.
        doing: What they are for.
        total: How many there will be, >= 0; None if nobody knows.
    """
    pulse = _AT_WORK.get()
    return iter(batches) if pulse is None else pulse.part(batches, doing, total)
