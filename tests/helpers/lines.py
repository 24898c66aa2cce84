"""Servers and proxies on this machine, each in threads of its own: what stands between hospitals, and how it fails."""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CHUNK = 65536


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve each connection in a thread for as long as the context lasts; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def one_by_one() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=guarded, args=(connection,), daemon=True).start()

        def guarded(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                serve(connection)

        threading.Thread(target=one_by_one, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def server(kit: Path, ahead: float = 0.0, client: Path | None = None) -> Iterator[int]:
    """A server under mutual TLS that answers questions as NVFlare's websockets do: nothing there, and what time it is.

    Args:
        kit: The server's.
        ahead: Seconds by which its clock is ahead.
        client: Kit whose root the sites' certificates must be of; None is the server's own.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(kit / "startup" / "server.crt", kit / "startup" / "server.key")
    context.load_verify_locations((client or kit) / "startup" / "rootCA.pem")

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as greeted:
            while greeted.recv(CHUNK):
                now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead)
                date = email.utils.format_datetime(now, usegmt=True)
                greeted.sendall(f"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nDate: {date}\r\n\r\n".encode())

    with listening(answer) as port:
        yield port


class Proxy:
    """Lets connections pass by the method CONNECT.

    Args:
        status: What it answers.
        cut: Bytes in both directions after which it breaks a connection off, for the first `cuts` ones.
        cuts: How many connections.
        rate: Bytes a second in each direction; None is as fast as it goes.
    """

    def __init__(self, status: int = 200, cut: int | None = None, cuts: int = 0, rate: float | None = None) -> None:
        self.status, self._cut, self._left, self._rate = status, cut, cuts, rate
        self.asked_for: list[str] = []
        self.passed = 0

    def __call__(self, connection: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        target = head.split()[1].decode()
        self.asked_for.append(target)
        connection.sendall(f"HTTP/1.1 {self.status} Whatever\r\n\r\n".encode())
        if self.status == 200:
            host, _, port = target.rpartition(":")
            self.pipe(connection, (host, int(port)))

    def pipe(self, connection: socket.socket, to: tuple[str, int]) -> None:
        """Pass on what comes, until one side or this proxy ends it."""
        limit = self._cut if self._left > 0 else None
        self._left -= 1
        with socket.create_connection(to) as other:
            sides = [(connection, other), (other, connection)]
            threads = [threading.Thread(target=self._pass_on, args=(*side, limit), daemon=True) for side in sides]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while part := source.recv(CHUNK):
                if self._rate is not None:
                    time.sleep(len(part) / self._rate)
                target.sendall(part)
                passed += len(part)
                self.passed += len(part)
                if limit is not None and passed > limit:
                    break
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
