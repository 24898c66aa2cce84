"""The server of a drill within this process."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable

from medfl.errors import MedflError
from medfl_flare.drill import words
from medfl_flare.drill.rehearsed import rehearse
from medfl_flare.sites.file import SiteFile


class Here:
    """Answers a site as `medfl_flare.drill.host.Host` does, with a thread in place of a process.

    Args:
        server: The server's own file.
        tamper: Changes the server's messages.
    """

    def __init__(self, server: SiteFile, tamper: Callable[[bytes], bytes] = lambda blob: blob) -> None:
        self._server, self._tamper = server, tamper
        self.to_site: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.from_site: queue.Queue[bytes | None] = queue.Queue()

    def __call__(self, kind: str, blob: bytes) -> tuple[str, bytes]:
        if kind == words.LINE:
            return words.LINE, os.urandom(int.from_bytes(blob[:8], "little"))
        if kind == words.LEAVE:
            self.from_site.put(None)
            return words.OVER, b""
        if kind == words.BEGIN:
            threading.Thread(target=self._serve, args=(blob,), daemon=True).start()
        elif blob:
            self.from_site.put(blob)
        return self.to_site.get(timeout=60)

    def _serve(self, raw_wish: bytes) -> None:
        def exchange(blob: bytes) -> bytes:
            self.to_site.put((words.ASKS, self._tamper(blob)))
            answer = self.from_site.get(timeout=60)
            if answer is None:
                raise SystemExit  # the site left
            return answer

        try:
            end = rehearse(self._server, *words.wish(raw_wish), exchange)
            self.to_site.put((words.OVER, json.dumps(end).encode()))
        except SystemExit:
            return
        except MedflError as error:
            self.to_site.put((words.REFUSED, str(error).encode()))
