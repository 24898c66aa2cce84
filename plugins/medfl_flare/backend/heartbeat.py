"""Heartbeats of working sites, and deadlines that measure silence instead of duration.

The server waits for a site as long as the site's heartbeats report progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from medfl.errors import RefusedError
from medfl.records.progress import MAX_BATCHES
from medfl.training.batches import SCORING, TRAINING
from medfl.utils.heartbeat import BEAT_SECONDS, HeartbeatSignal
from medfl_flare.backend.messages import Limits, Message, pack, unpack

HEARTBEAT_KIND = "beat"
"""Kind of a heartbeat message. The server does not reply to it."""

HEARTBEAT_LIMITS = Limits(max_bytes=4096, max_tensors=0)
"""Limits of a heartbeat message."""

MIN_HEARTBEAT_SECONDS = BEAT_SECONDS / 3
"""Minimum number of seconds between two heartbeats of a site that the server records, so that no site can fill its
disk."""


def pack_heartbeat(beat: HeartbeatSignal) -> bytes:
    """Return a heartbeat as bytes, for `read_heartbeat`."""
    return pack(Message(HEARTBEAT_KIND, {}, vars(beat)))


def read_heartbeat(blob: bytes) -> HeartbeatSignal:
    """Return the heartbeat in a packed message. The bytes are untrusted.

    Raises:
        RefusedError: If the bytes are not a valid heartbeat.
    """
    message = unpack(blob, HEARTBEAT_LIMITS)
    doing, batch, batches, moved = (message.meta.get(name) for name in ("doing", "batch", "batches", "moved"))
    fits = _is_count(batch, 0) and _is_count(batches, 1)
    if message.kind != HEARTBEAT_KIND or doing not in ("", TRAINING, SCORING) or not fits or type(moved) is not bool:
        raise RefusedError(
            "invalid_heartbeat",
            "expected a heartbeat with the activity, the numbers of batches and whether one is done",
        )
    return HeartbeatSignal(doing, batch, batches, moved)


def _is_count(value: object, least: int) -> bool:
    """Return whether a value is None or an integer from `least` to `MAX_BATCHES`."""
    return value is None or (type(value) is int and least <= value <= MAX_BATCHES)


class SilenceTimer:
    """Timer of the sites' silence. A site is silent since the server's request or since its last progress.

    Args:
        sites: Names of the sites that got a request just now.
        patience: Seconds of silence after which the server stops waiting for a site, > 0.
        clock: Function that returns the current time in seconds.
    """

    def __init__(self, sites: Iterable[str], patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock, self._lock = patience, clock, threading.Lock()
        self._moved = dict.fromkeys(sites, clock())

    def record_progress(self, site: str) -> None:
        """Restart the timer of a site. A site without a request is ignored."""
        with self._lock:
            if site in self._moved:
                self._moved[site] = self._clock()

    def silent_sites(self) -> list[str]:
        """Return the names of the sites that have been silent for too long, sorted."""
        with self._lock:
            now = self._clock()
            return sorted(site for site, since in self._moved.items() if now - since > self._patience)

    @property
    def reason(self) -> str:
        """Reason text for a site that has been silent for too long."""
        return f"did not reply in time: its work has made no progress for {self._patience:g} s"
