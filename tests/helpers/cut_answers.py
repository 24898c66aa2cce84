"""A TCP relay that cuts connections before the answer to a chosen request, and the component of a site that arms it."""

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


class CuttingRelay:
    """Relay to a server. Once armed, it cuts every connection as soon as its next request has passed.

    The answer is then lost, or the server has no connection for it. After a cut the relay refuses one new connection.

    Attributes:
        cuts: Number of connections that it cut.
    """

    def __init__(self, port: int) -> None:
        self._port, self._lock = port, threading.Lock()
        self._open: set[_RelayedConnection] = set()
        self._refusals = self.cuts = 0

    def arm(self, connection: socket.socket) -> None:
        """Arm the relay for all its connections, and acknowledge that over the given one."""
        with self._lock:
            for relayed in self._open:
                relayed.is_armed = True
        connection.sendall(b"\n")

    def __call__(self, connection: socket.socket) -> None:
        """Pass on what comes over a connection, until one side or the relay ends it."""
        with self._lock:
            is_refused, self._refusals = self._refusals > 0, max(self._refusals - 1, 0)
        if is_refused:
            return
        with socket.create_connection(("127.0.0.1", self._port)) as server:
            relayed = _RelayedConnection(connection, server)
            with self._lock:
                self._open.add(relayed)
            relayed.pass_on()
        with self._lock:
            self._open.discard(relayed)
            if relayed.is_cut:
                self.cuts, self._refusals = self.cuts + 1, 1


@dataclass(eq=False)
class _RelayedConnection:
    """A connection of a site and the relay's own connection to the server."""

    site: socket.socket
    server: socket.socket
    is_armed: bool = False
    is_cut: bool = False

    def pass_on(self) -> None:
        threads = [threading.Thread(target=pass_, daemon=True) for pass_ in (self._pass_requests, self._pass_answers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _pass_requests(self) -> None:
        with contextlib.suppress(OSError):
            while not self.is_cut and (part := self.site.recv(CHUNK)):
                self.is_cut = self.is_armed  # before the server can answer
                self.server.sendall(part)
        self._close()

    def _pass_answers(self) -> None:
        with contextlib.suppress(OSError):
            while (part := self.server.recv(CHUNK)) and not self.is_cut:
                self.site.sendall(part)
        self._close()

    def _close(self) -> None:
        for side in (self.site, self.server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


class CutSignal(FLComponent):  # type: ignore[misc]
    """Component of a site that arms the relay just before chosen requests of its job.

    Args:
        port: Port at which the relay is armed.
        requests: Names of requests with their numbers, such as ``submit 1``: the first task result.
    """

    def __init__(self, port: int, requests: list[str]) -> None:
        super().__init__()
        self._port, self._wanted, self._counts = port, set(requests), dict.fromkeys(CALLS, 0)
        for name, method in CALLS.items():
            setattr(Communicator, method, self._armed_first(name, getattr(Communicator, method)))

    def _armed_first(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*arguments: Any, **named: Any) -> Any:
            self._counts[name] += 1
            if f"{name} {self._counts[name]}" in self._wanted:
                with socket.create_connection(("127.0.0.1", self._port)) as relay:
                    assert relay.recv(1) == b"\n"
            return call(*arguments, **named)

        return armed
