"""HTTP server for the monitor's page on 127.0.0.1, updated by server-sent events.

Threat model: other machines can't connect. Other users of this machine, and pages of other web sites in the user's
browser, don't know the random token in the address. The server is read-only: it answers GET requests for two addresses.
"""

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
from medfl_report.monitor.monitor_page import render_page, render_runs
from medfl_report.monitor.monitored_folders import MonitoredFolder

HOST = "127.0.0.1"
"""Loopback address at which the server listens."""

POLL_SECONDS = 1.0
"""Seconds between two checks for new events while a browser is connected."""

REFRESH_SECONDS = 5.0
"""Seconds after which the content is rendered again without new events, to update durations and silent sites."""

KEEPALIVE_SECONDS = 15.0
"""Seconds without a change after which the stream sends a comment, so that both ends detect a lost connection."""

TOKEN_BYTES = 24
"""Random bytes of a token, before the URL-safe base64 encoding."""

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every successful response. The address is secret, so a browser must not store it or send it elsewhere."""


class PageContent:
    """Current content of the page, rendered once for all connected browsers. Thread-safe.

    Args:
        folder: The monitored folder.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, folder: MonitoredFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock, self._lock = folder, clock, threading.Lock()
        self._html, self._rendered_at = Markup(""), 0.0

    def html(self) -> Markup:
        """Read new events and return the content; it is rendered again for new events and every `REFRESH_SECONDS`."""
        with self._lock:
            has_news = self._folder.read_events()
            if has_news or not self._html or self._clock() - self._rendered_at >= REFRESH_SECONDS:
                self._html, self._rendered_at = render_runs(self._folder.views()), self._clock()
            return self._html


class MonitorServer(ThreadingHTTPServer):
    """HTTP server of the page.

    Args:
        port: TCP port; 0 lets the system choose a free one.
        title: Title of the page.
        content: Content of the page.
        token: Secret part of the address.

    Attributes:
        title: Title of the page.
        content: Content of the page.
        token: Secret part of the address.
        stopped: Event that is set when the server stops, so that event streams end.
    """

    daemon_threads = True
    """Whether open connections don't keep the process alive; an attribute of the base class."""

    def __init__(self, port: int, title: str, content: PageContent, token: str) -> None:
        super().__init__((HOST, port), MonitorHandler)
        self.title, self.content, self.token, self.stopped = title, content, token, threading.Event()

    @property
    def address(self) -> str:
        """URL of the page, with the token."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def shutdown(self) -> None:
        """Stop the server and end its event streams."""
        self.stopped.set()
        super().shutdown()


class MonitorHandler(BaseHTTPRequestHandler):
    """Handler of GET requests for the page and its event stream; every other request gets an error status."""

    server: MonitorServer
    """Server that received the request."""
    server_version, sys_version = "medfl", ""
    timeout = 60
    """Seconds without data from the browser after which a connection is closed."""

    def do_GET(self) -> None:  # noqa: N802 - the standard library's name
        """Send the page for ``/TOKEN/``, or the event stream for ``/TOKEN/events``.

        A wrong token or a foreign ``Host`` header gets 403. The header is checked against DNS rebinding: a page of
        another web site whose name resolves to 127.0.0.1 sends its own name.
        """
        hosts = (f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        token, slash, rest = self.path.partition("?")[0].removeprefix("/").partition("/")
        is_token_right = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not is_token_right or self.headers.get("Host") not in hosts:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif slash and not rest:
            self._send_page()
        elif rest == "events":
            self._send_events()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send_page(self) -> None:
        body = render_page(self.server.title, secrets.token_urlsafe(12), self.server.content.html()).encode()
        self._send_head("text/html; charset=utf-8", {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _send_events(self) -> None:
        """Send the content as a server-sent event whenever it changes, until the server stops or the client leaves."""
        self._send_head("text/event-stream", {"Connection": "close"})
        sent_html, sent_at = "", time.monotonic()
        try:
            while not self.server.stopped.is_set():
                html = self.server.content.html()
                if html != sent_html:
                    self.wfile.write(f"data: {json.dumps(html)}\n\n".encode())
                    sent_html, sent_at = html, time.monotonic()
                elif time.monotonic() - sent_at > KEEPALIVE_SECONDS:
                    self.wfile.write(b": still there\n\n")
                    sent_at = time.monotonic()
                self.server.stopped.wait(POLL_SECONDS)
        except OSError:
            return  # the client closed the connection

    def _send_head(self, content_type: str, headers: dict[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in (SECURITY_HEADERS | {"Content-Type": content_type} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Discard log lines: they would contain the secret address."""


@contextmanager
def serve_page(folder: MonitoredFolder, title: str, port: int = 0, token: str = "") -> Iterator[MonitorServer]:
    """Serve the page from a background thread for the duration of a ``with`` block.

    Args:
        folder: The monitored folder.
        title: Title of the page.
        port: TCP port; 0 lets the system choose a free one.
        token: Secret part of the address, for tests; empty for a random one.

    Raises:
        SettingsError: If the port can't be opened.
    """
    try:
        server = MonitorServer(port, title, PageContent(folder), token or secrets.token_urlsafe(TOKEN_BYTES))
    except OSError as error:
        raise SettingsError(
            "port_unavailable",
            f"can't listen at port {port} of {HOST}: {error.strerror}. Give another --port, or leave the option out.",
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
