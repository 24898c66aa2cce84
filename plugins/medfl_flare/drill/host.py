"""Drills at the server: each has a process of its own, and none waits for another.

A site asks, and asks again until there is an answer: whoever answers never waits, so that the server's other messages
pass. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

from medfl.errors import RefusedError
from medfl_flare.drill import words
from medfl_flare.drill.worker import KINDS, read_frame, write_frame

logger = logging.getLogger(__name__)

MOST = 2
"""Drills at the same time."""

LIFE = 900.0
"""Seconds after which a drill is ended, whatever it does."""


class Drill:
    """One drill.

    Args:
        site_file: The server's own file.
        raw_wish: What the site wishes, checked.
    """

    def __init__(self, site_file: Path, raw_wish: bytes) -> None:
        self._ready: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "medfl_flare.drill.worker", str(site_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._timer = threading.Timer(LIFE, self.end)
        self._timer.daemon = True
        self._timer.start()
        self.take(raw_wish)

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self._process.poll() is None

    def take(self, blob: bytes) -> None:
        """Hand an answer of the site on."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; `next` says so
            write_frame(self._process.stdin, 0, blob)  # type: ignore[arg-type]

    def next(self) -> tuple[str, bytes]:
        """What there is for the site now."""
        try:
            return self._ready.get_nowait()
        except queue.Empty:
            return words.WAIT, b""

    def end(self) -> None:
        """End it, if it has not ended."""
        self._timer.cancel()
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while (frame := read_frame(self._process.stdout)) is not None:  # type: ignore[arg-type]
            self._ready.put((KINDS[frame[0]], frame[1]))
        self._process.wait()
        status = self._process.returncode
        self._ready.put((words.REFUSED, f"the drill's process at the server ended (status {status})".encode()))


class Host:
    """All drills of a server.

    Args:
        site_file: The server's own file.
    """

    def __init__(self, site_file: Path) -> None:
        self._site_file = site_file
        self._drills: dict[str, Drill] = {}
        self._lock = threading.Lock()

    def answer(self, key: str, kind: str, blob: bytes) -> tuple[str, bytes]:
        """Answer a site at once; raises nothing that it brings about.

        Args:
            key: Names the drill; the site chose it.
            kind: Of `medfl_flare.drill.words`.
            blob: What goes with it.
        """
        try:
            return self._answer(key, kind, blob)
        except RefusedError as error:
            return words.REFUSED, str(error).encode()

    def close(self) -> None:
        """End all drills."""
        with self._lock:
            for drill in self._drills.values():
                drill.end()
            self._drills.clear()

    def _answer(self, key: str, kind: str, blob: bytes) -> tuple[str, bytes]:
        if kind == words.LINE:
            wanted = int.from_bytes(blob[:8], "little")
            return words.LINE, os.urandom(min(wanted, words.MAX_LINE))
        if kind == words.BEGIN:
            site, bundle, _ = words.wish(blob)
            self._begin(key, blob)
            logger.info("'%s' begins a drill with the bundle '%s'.", site[:64], bundle[:64])
            return words.WAIT, b""
        with self._lock:
            drill = self._drills.get(key)
        if drill is None:
            raise RefusedError("unknown_drill", "there is no such drill (any more); begin anew")
        if kind == words.LEAVE:
            with self._lock:
                self._drills.pop(key, None)
            drill.end()
            return words.OVER, b""
        if blob:
            drill.take(blob)
        return drill.next()

    def _begin(self, key: str, raw_wish: bytes) -> None:
        with self._lock:
            for name in [name for name, drill in self._drills.items() if not drill.runs]:
                self._drills.pop(name).end()
            if len(self._drills) >= MOST:
                raise RefusedError(
                    "too_many_drills",
                    f"{MOST} drills are at work at the server; try again in a few minutes",
                    maximum=MOST,
                )
            self._drills[key] = Drill(self._site_file, raw_wish)
