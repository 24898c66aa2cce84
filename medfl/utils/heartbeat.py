"""Heartbeats of long computations: a thread reports at intervals how many batches are done, and whether one was.

The caller of a computation opens a `HeartbeatSender` around it; the computation counts its batches by `count_batches`.
They don't need to know each other, and heartbeats don't affect any result. Computations that follow each other share
one `HeartbeatThread`, because starting a thread takes longer than a heartbeat is worth in a short computation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from typing import Self, TypeVar

BEAT_SECONDS = 30.0
"""Seconds between two heartbeats."""

T = TypeVar("T")
"""Type variable: type of a batch."""


@dataclass(frozen=True)
class HeartbeatSignal:
    """A heartbeat.

    Attributes:
        doing: Purpose of the batches, for example ``training``; empty before the first batch.
        batch: Number of batches that are done, >= 0, also by an earlier process that was killed; None if it is private.
        batches: Number of planned batches, >= 1; None if it is unknown or private.
        moved: Whether a batch was finished since the previous heartbeat.
    """

    doing: str = ""
    batch: int | None = None
    batches: int | None = None
    moved: bool = False

    def without_counts(self) -> HeartbeatSignal:
        """Return the heartbeat without the numbers of batches, which reveal the number of images."""
        return replace(self, batch=None, batches=None)


class HeartbeatThread:
    """Context manager with a thread that sends the heartbeats of one `HeartbeatSender` at a time.

    Args:
        every: Seconds between two heartbeats, > 0.
    """

    def __init__(self, every: float = BEAT_SECONDS) -> None:
        self._every, self._over = every, threading.Event()
        self._lock = threading.Lock()  # held while a heartbeat is sent
        self._sender: HeartbeatSender | None = None
        self._due = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def watch(self, sender: HeartbeatSender | None) -> None:
        """Send the heartbeats of a sender from now on, and no longer those of the previous sender.

        The first heartbeat is due `every` seconds after this call. The function waits for a heartbeat that is just
        being sent.

        Args:
            sender: The sender; None sends no heartbeats.
        """
        with self._lock:
            self._sender, self._due = sender, time.monotonic() + self._every

    def _run(self) -> None:
        """Send heartbeats until the block ends. A later sender is due later, so the thread need not be woken for it."""
        seconds = self._every
        while not self._over.wait(seconds):
            with self._lock:
                if self._sender is not None and time.monotonic() >= self._due:
                    self._sender.send_beat()
                    self._due = time.monotonic() + self._every
                seconds = self._every if self._sender is None else max(0.0, self._due - time.monotonic())


class HeartbeatSender:
    """Context manager that sends the heartbeats of one computation.

    Args:
        send: Function that receives each heartbeat, in the thread of `thread`; not called after the block.
        thread: Open thread that sends no other heartbeats during the block.
    """

    def __init__(self, send: Callable[[HeartbeatSignal], None], thread: HeartbeatThread) -> None:
        self._send, self._thread = send, thread
        self._doing, self._done, self._depth = "", 0, 0
        self._total: int | None = None
        self._count = self._counted_before = 0
        self._token: Token[HeartbeatSender | None] | None = None

    def __enter__(self) -> Self:
        self._token = _CURRENT_SENDER.set(self)
        self._thread.watch(self)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._token is not None
        _CURRENT_SENDER.reset(self._token)
        self._thread.watch(None)

    def send_beat(self) -> None:
        """Send the heartbeat for the current state."""
        self._send(self.beat())

    def beat(self) -> HeartbeatSignal:
        """Return the heartbeat for the current state; `moved` of the next one refers to the time after this call."""
        count, before = self._count, self._counted_before
        self._counted_before = count
        batch = self._done if self._doing else None
        return HeartbeatSignal(self._doing, batch, self._total or None, count > before)

    def part(self, batches: Iterable[T], doing: str, total: int | None, done: int = 0) -> Iterator[T]:
        """Yield the batches and count them. Of nested loops over batches, only the outer one has a position.

        Args:
            batches: Batches; one is done when the next one is requested.
            doing: Purpose of the batches.
            total: Number of batches, >= 0; None if unknown.
            done: Number of batches that were done before.
        """
        self._depth += 1
        outer = self._depth == 1
        if outer:
            self._doing, self._total, self._done = doing, total, done
        try:
            for batch in batches:
                yield batch
                self._count += 1
                self._done += outer
        finally:
            self._depth -= 1


_CURRENT_SENDER: ContextVar[HeartbeatSender | None] = ContextVar("at_work", default=None)
"""The innermost `HeartbeatSender` around the current code."""


def count_batches(batches: Iterable[T], doing: str, total: int | None = None, done: int = 0) -> Iterator[T]:
    """Yield the batches, counted for the `HeartbeatSender` around the code if there is one.

    Args:
        batches: Batches; one is done when the next one is requested.
        doing: Purpose of the batches.
        total: Number of batches, >= 0; None if unknown.
        done: Number of batches that were done before, which count in the position.
    """
    pulse = _CURRENT_SENDER.get()
    return iter(batches) if pulse is None else pulse.part(batches, doing, total, done)
