"""Connections to the server, direct or through a proxy. The federation's scheme decides which of them NVFlare uses.

``http`` (websockets, by aiohttp without its environment) and ``tcp`` ignore proxy variables. gRPC uses the first of
`GRPC_VARIABLES`, which must be written in lower case, with the method CONNECT.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from medfl.errors import MedflError, SettingsError

TIMEOUT_SECONDS = 10.0
"""Timeout in seconds of each network operation."""

GRPC_SCHEMES = ("grpc", "agrpc", "nagrpc")
"""NVFlare's names of the schemes that use gRPC."""

GRPC_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables from which gRPC takes its proxy, in order of precedence."""

GRPC_EXCLUDED = "no_grpc_proxy"
"""Environment variable with hosts that gRPC reaches without a proxy, in lower case only."""

PROXY_VARIABLES = (*GRPC_VARIABLES, "HTTPS_PROXY")
"""Environment variables that may name a proxy."""

PASSWORD_ADVICE = "give the right user and password in its URL, as in http://USER:PASSWORD@HOST:PORT"
"""Advice for a proxy that does not accept the user or the password: status 407, and also 401 with some proxies."""

MAX_HEAD_BYTES = 65536
"""Maximum number of bytes of an HTTP response's head."""


class NoRouteError(MedflError):
    """The server can't be reached; the message contains the cause and what to do."""


@dataclass(frozen=True)
class ServerAddress:
    """Address of the server in a site's kit.

    Attributes:
        host: Host name.
        port: Port.
        scheme: ``http``, ``grpc`` or ``tcp``.
        identity: Name in the server's certificate.
    """

    host: str
    port: int
    scheme: str
    identity: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def address_of(kit: Path) -> ServerAddress:
    """Return the server's address in a site's kit.

    Raises:
        SettingsError: If the kit contains no address.
    """
    path = kit / "startup" / "fed_client.json"
    try:
        server = json.loads(path.read_text(encoding="utf-8"))["servers"][0]
        host, _, port = server["service"]["target"].rpartition(":")
        return ServerAddress(host, int(port), server["service"].get("scheme", "http"), server.get("identity", host))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise SettingsError(
            "invalid_kit", f"expected the server's address in '{path}', found none. Ask the maker of the kit", path=path
        ) from None


def proxy_for(address: ServerAddress) -> tuple[str, str] | None:
    """Return the environment variable that names a proxy for the server, and the proxy.

    Return None if no variable names a proxy, or if the variable ``no_proxy`` excludes the server. For gRPC,
    ``no_grpc_proxy`` replaces ``no_proxy`` if it is set.
    """
    own = os.environ.get(GRPC_EXCLUDED) if address.scheme in GRPC_SCHEMES else None
    excluded = urllib.request.proxy_bypass(address.host) if own is None else _ends_with_any(address.host, own)
    if excluded:
        return None
    return next(((name, value) for name in PROXY_VARIABLES if (value := os.environ.get(name))), None)


def uses_proxy(address: ServerAddress, variable: str) -> bool:
    """Return whether NVFlare uses the proxy that a variable names."""
    return address.scheme in GRPC_SCHEMES and variable in GRPC_VARIABLES


def _ends_with_any(host: str, endings: str) -> bool:
    """Return whether a host name ends with one of the comma-separated endings, as gRPC compares them."""
    return any(host.endswith(ending) for entry in endings.split(",") if (ending := entry.strip()))


def connect_directly(address: ServerAddress) -> socket.socket:
    """Open a direct connection to the server.

    Raises:
        NoRouteError: If the connection fails.
    """
    try:
        return socket.create_connection((address.host, address.port), TIMEOUT_SECONDS)
    except socket.gaierror:
        raise NoRouteError(
            "unknown_host",
            f"the name '{address.host}' can't be resolved on this machine; ask for the server's name as sites resolve "
            "it, or add it to /etc/hosts",
            host=address.host,
        ) from None
    except ConnectionRefusedError:
        raise NoRouteError(
            "connection_refused",
            f"the machine at {address} exists, but no process listens at the port: check that the server is started "
            "(`medfl federate start KIT`), and that the port is right",
            address=str(address),
        ) from None
    except OSError as error:
        raise NoRouteError(
            "server_unreachable",
            f"{address} does not answer ({error.strerror or error}): a firewall may block the connection; have "
            f"outgoing TCP connections to port {address.port} of that machine allowed",
            address=str(address),
        ) from None


def connect_through_proxy(proxy: str, address: ServerAddress) -> socket.socket:
    """Open a connection to the server through a proxy, with the method CONNECT.

    Args:
        proxy: URL of the proxy, or host and port.
        address: Address of the server.

    Raises:
        NoRouteError: If the proxy can't be reached, or if it refuses.
    """
    url = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    where = f"{url.hostname}:{url.port or 80}"
    words = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if url.username:
        secret = f"{urllib.parse.unquote(url.username)}:{urllib.parse.unquote(url.password or '')}"
        words.append("Proxy-Authorization: Basic " + base64.b64encode(secret.encode()).decode())
    try:
        connection = socket.create_connection((url.hostname or "", url.port or 80), TIMEOUT_SECONDS)
        connection.sendall("\r\n".join([*words, "", ""]).encode())
        head = read_head(connection)
    except OSError as error:
        raise NoRouteError(
            "proxy_unreachable",
            f"the proxy {where} does not answer ({error.strerror or error}); correct the variable that names it",
            proxy=where,
        ) from None
    status = head.split(" ", 2)[1] if head.startswith("HTTP/") and " " in head else "unknown, as it sent no HTTP"
    if status != "200":
        connection.close()
        advice = PASSWORD_ADVICE if status in ("401", "407") else f"have CONNECT to {address} allowed there"
        raise NoRouteError(
            "proxy_refused", f"the proxy {where} refuses (status {status}); {advice}", proxy=where, status=status
        )
    return connection


def read_head(connection: socket.socket) -> str:
    """Read the head of an HTTP response, byte by byte, so that the bytes behind it stay in the connection.

    Raises:
        OSError: If the connection ends or times out.
    """
    head = b""
    while not head.endswith(b"\r\n\r\n") and len(head) < MAX_HEAD_BYTES:
        part = connection.recv(1)
        if not part:
            break
        head += part
    return head.decode("latin-1")
