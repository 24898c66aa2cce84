"""Heartbeats between machines, and deadlines that count silence: a site whose work moves is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from medfl.errors import RefusedError
from medfl.training.batches import SCORING, TRAINING
from medfl.utils.pulse import BEAT_SECONDS, Beat
from medfl_flare.backend.messages import Limits, Message, pack, unpack

BEAT = "beat"
"""Kind of the message; it asks for no answer."""

LIMITS = Limits(max_bytes=4096, max_tensors=0)
"""What a heartbeat may be."""

FASTEST = BEAT_SECONDS / 3
"""Seconds within which a second heartbeat of a site is not noted down: nobody fills a disk with them."""


def pack_beat(beat: Beat) -> bytes:
    """A heartbeat as bytes, for `read_beat`."""
    return pack(Message(BEAT, {}, vars(beat)))


def read_beat(blob: bytes) -> Beat:
    """A site's heartbeat, from bytes that nobody has looked at yet.

    Raises:
        RefusedError: If it is none.
    """
    message = unpack(blob, LIMITS)
    doing, share, moved = (message.meta.get(name) for name in ("doing", "share", "moved"))
    fits = share is None or (type(share) in (int, float) and 0 <= share <= 1)
    if message.kind != BEAT or doing not in ("", TRAINING, SCORING) or not fits or type(moved) is not bool:
        raise RefusedError(
            "invalid_heartbeat", "expected a heartbeat: what is done, the share of it that is done, whether it moves"
        )
    return Beat(doing, share, moved)


class Silence:
    """How long sites have been silent, since they were asked or since their work last moved.

    Args:
        sites: Those that were asked just now.
        patience: Seconds after which a silent one is waited for no more, > 0.
        clock: Tells the seconds.
    """

    def __init__(self, sites: Iterable[str], patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock, self._lock = patience, clock, threading.Lock()
        self._moved = dict.fromkeys(sites, clock())

    def moved(self, site: str) -> None:
        """A site's work moves; of one that was not asked nothing is expected."""
        with self._lock:
            if site in self._moved:
                self._moved[site] = self._clock()

    def overdue(self) -> list[str]:
        """Those that were silent for longer than that, sorted."""
        with self._lock:
            now = self._clock()
            return sorted(site for site, since in self._moved.items() if now - since > self._patience)

    @property
    def why(self) -> str:
        """Why one of them is missing."""
        return f"did not answer in time: its work has not moved for {self._patience:g} s"
