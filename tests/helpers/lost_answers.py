"""A TCP relay that loses answers to chosen requests and cuts the connections, and a site's component that tells it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lines import CHUNK
from nvflare.apis.fl_component import FLComponent
from nvflare.private.fed.client.communicator import Communicator

CALLS = {"get": "pull_task", "submit": "submit_update"}
"""Maps the name of a request to NVFlare's method that sends it and waits for the answer."""


class LosingRelay:
    """Relay to a server that can lose answers: all that the server sends during a site's request, and then the lines.

    Args:
        port: Port of the server.

    Attributes:
        cuts: Number of connections that it cut after it had lost an answer.
    """

    def __init__(self, port: int) -> None:
        self._port, self._lock = port, threading.Lock()
        self._open: set[_RelayedConnection] = set()
        self.cuts = 0

    def lose(self, request: socket.socket) -> None:
        """Discard what the server sends as long as the site keeps a connection open; then cut all lines."""
        with self._lock:
            lines_of_site = set(self._open)
        for line in lines_of_site:
            line.is_losing = True
        request.sendall(b"\n")
        request.recv(1)
        for line in lines_of_site:
            self.cuts += line.has_lost
            line.close()

    def __call__(self, connection: socket.socket) -> None:
        """Pass on what comes over a connection, until one side or the relay ends it."""
        with socket.create_connection(("127.0.0.1", self._port)) as server:
            line = _RelayedConnection(connection, server)
            with self._lock:
                self._open.add(line)
            line.pass_on()
            with self._lock:
                self._open.discard(line)


@dataclass(eq=False)
class _RelayedConnection:
    """A connection of a site and the relay's own connection to the server."""

    site: socket.socket
    server: socket.socket
    is_losing: bool = False
    has_lost: bool = False

    def pass_on(self) -> None:
        threads = [threading.Thread(target=pass_, daemon=True) for pass_ in (self._pass_requests, self._pass_answers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        for side in (self.site, self.server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _pass_requests(self) -> None:
        with contextlib.suppress(OSError):
            while part := self.site.recv(CHUNK):
                self.server.sendall(part)
        self.close()

    def _pass_answers(self) -> None:
        with contextlib.suppress(OSError):
            while part := self.server.recv(CHUNK):
                if self.is_losing:
                    self.has_lost = True
                else:
                    self.site.sendall(part)
        self.close()


class LossSignal(FLComponent):  # type: ignore[misc]
    """Component of a site that has the relay lose the answers to chosen requests of the site's jobs.

    Args:
        port: Port at which the relay is told.
        requests: Names of requests with their numbers, such as ``submit 1``: the first result of a task.
    """

    def __init__(self, port: int, requests: list[str]) -> None:
        super().__init__()
        self._port, self._wanted, self._counts = port, set(requests), dict.fromkeys(CALLS, 0)
        for name, method in CALLS.items():
            setattr(Communicator, method, self._losing(name, getattr(Communicator, method)))

    def _losing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self._counts[name] += 1
            if f"{name} {self._counts[name]}" not in self._wanted:
                return call(*arguments, **named)
            with socket.create_connection(("127.0.0.1", self._port)) as relay:
                assert relay.recv(1) == b"\n"
                return call(*arguments, **named)

        return counted
