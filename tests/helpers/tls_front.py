"""TLS in front of a server without TLS, as a hospital's reverse proxy adds it."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def tls_front(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """Forward connections with TLS to a port of this machine. Yield the port with TLS."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                contextlib.suppress(OSError),  # also a handshake that failed
                context.wrap_socket(self.request, server_side=True) as client,
                socket.create_connection(("127.0.0.1", port)) as server,
            ):
                forward(client, server)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield running.server_address[1]
        finally:
            running.shutdown()
            thread.join()


def forward(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Copy bytes in both directions until one side closes."""
    while True:
        ready = [client] if client.pending() else select.select([client, server], [], [])[0]
        for source, target in ((client, server), (server, client)):
            if source in ready:
                content = source.recv(1 << 16)
                if not content:
                    return
                target.sendall(content)
