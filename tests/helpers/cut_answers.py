"""A TCP relay that cuts connections while the answer to a chosen request is on its way, and the site's part of it."""

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
    """Relay to a server. Once armed, it discards the answer to the next request of each connection and then cuts it.

    After each cut it refuses some new connections.

    Args:
        port: Port of the server.
        refusals: Number of new connections that it refuses after each cut.

    Attributes:
        cuts: Number of connections that it cut.
        refused: Number of connections that it refused.
    """

    def __init__(self, port: int, refusals: int = 0) -> None:
        self._port, self._refusals, self._left, self._lock = port, refusals, 0, threading.Lock()
        self._open: set[_Doom] = set()
        self.cuts = self.refused = 0

    def arm(self, connection: socket.socket) -> None:
        """Arm the relay for all connections, and acknowledge it."""
        with self._lock:
            for doom in self._open:
                doom.is_armed = True
        connection.sendall(b"\n")

    def __call__(self, connection: socket.socket) -> None:
        with self._lock:
            refused, self._left = self._left > 0, max(self._left - 1, 0)
            self.refused += refused
        if refused:
            return
        doom = _Doom()
        with socket.create_connection(("127.0.0.1", self._port)) as server:
            with self._lock:
                self._open.add(doom)
            sides = ((connection, server, doom.passes_request), (server, connection, doom.passes_answer))
            threads = [threading.Thread(target=_pass_on, args=side, daemon=True) for side in sides]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with self._lock:
            self._open.discard(doom)
            if doom.is_cut:
                self.cuts, self._left = self.cuts + 1, self._refusals


@dataclass(eq=False)
class _Doom:
    """State of a connection: armed, then with a request that passed, then cut."""

    is_armed: bool = False
    has_request: bool = False
    is_cut: bool = False

    def passes_request(self) -> bool:
        self.has_request = self.is_armed
        return not self.is_cut

    def passes_answer(self) -> bool:
        self.is_cut = self.is_armed and self.has_request
        return not self.is_cut


def _pass_on(source: socket.socket, target: socket.socket, passes: Callable[[], bool]) -> None:
    """Pass on the bytes of one direction until one side ends it or `passes` returns False."""
    with contextlib.suppress(OSError):
        while (part := source.recv(CHUNK)) and passes():
            target.sendall(part)
    for side in (source, target):
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
