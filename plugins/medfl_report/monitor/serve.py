"""The page on 127.0.0.1, fed by server-sent events. It is only read, and only by who has the address with its token."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from markupsafe import Markup

from medfl.errors import SettingsError
from medfl_report.monitor.folders import MonitoredFolder
from medfl_report.monitor.page import content, page

HOST = "127.0.0.1"
"""Where the page is; no other machine can reach it."""

POLL = 1.0
"""Seconds between two looks while somebody watches."""

TICK = 5.0
"""Seconds after which the page is made anew though nothing was noted down: how long a site works, who is silent."""

ALIVE = 15.0
"""Seconds after which the stream says something even if nothing happens, so that both ends know of each other."""

TOKEN_BYTES = 24
"""Of a token, before it is written as text."""

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of all answers: the address is a secret, so nobody learns it from a browser."""


class Feed:
    """What is shown now, made once for all who watch.

    Args:
        folder: What is watched.
        clock: Seconds that only go on.
    """

    def __init__(self, folder: MonitoredFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock, self._lock = folder, clock, threading.Lock()
        self._text, self._made = Markup(""), 0.0

    def text(self) -> Markup:
        """The content of the page: made anew where there are new events, and every `TICK` seconds."""
        with self._lock:
            if self._folder.look() or not self._text or self._clock() - self._made >= TICK:
                self._text, self._made = content(self._folder.views()), self._clock()
            return self._text


class Server(ThreadingHTTPServer):
    """Serves the page.

    Args:
        port: Where it listens; 0 lets the system choose.
        title: What is watched.
        feed: Makes its content.
        token: The part of the address that nobody can guess.
    """

    daemon_threads = True

    def __init__(self, port: int, title: str, feed: Feed, token: str) -> None:
        super().__init__((HOST, port), Handler)
        self.title, self.feed, self.token, self.stopped = title, feed, token, threading.Event()

    @property
    def address(self) -> str:
        """Of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def shutdown(self) -> None:
        """End it, and the streams."""
        self.stopped.set()
        super().shutdown()


class Handler(BaseHTTPRequestHandler):
    """Answers GET for the page and its stream, and nothing else."""

    server: Server
    server_version, sys_version = "medfl", ""
    timeout = 60

    def do_GET(self) -> None:  # noqa: N802 - the standard library's name
        """The page, or the stream of events."""
        names = (f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        token, slash, rest = self.path.partition("?")[0].removeprefix("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not known or self.headers.get("Host") not in names:  # another name: a page of somebody else asks
            self.send_error(HTTPStatus.FORBIDDEN)
        elif slash and not rest:
            self._page()
        elif rest == "events":
            self._stream()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _page(self) -> None:
        body = page(self.server.title, secrets.token_urlsafe(12), self.server.feed.text()).encode()
        self._head("text/html; charset=utf-8", {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _stream(self) -> None:
        self._head("text/event-stream", {"Connection": "close"})
        sent, last = "", time.monotonic()
        try:
            while not self.server.stopped.is_set():
                text = self.server.feed.text()
                if text != sent:
                    self.wfile.write(f"data: {json.dumps(text)}\n\n".encode())
                    sent, last = text, time.monotonic()
                elif time.monotonic() - last > ALIVE:
                    self.wfile.write(b": still there\n\n")
                    last = time.monotonic()
                self.server.stopped.wait(POLL)
        except OSError:
            return  # whoever watched has gone

    def _head(self, kind: str, more: dict[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in (HEADERS | {"Content-Type": kind} | more).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the address is a secret."""


@contextmanager
def serving(folder: MonitoredFolder, title: str, port: int = 0, token: str = "") -> Iterator[Server]:
    """Serve the page for the length of a block.

    Args:
        folder: What is watched.
        title: What to call it.
        port: Where to listen; 0 lets the system choose.
        token: For tests; else one that nobody can guess.

    Raises:
        SettingsError: If nobody can listen at the port.
    """
    try:
        server = Server(port, title, Feed(folder), token or secrets.token_urlsafe(TOKEN_BYTES))
    except OSError as error:
        raise SettingsError(
            "port_unavailable",
            f"can't listen at port {port} of {HOST}: {error.strerror}. Give another --port, or none.",
            port=port,
            reason=error.strerror,
        ) from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
