"""The way to the server: straight, or through a proxy; which of them NVFlare takes depends on the federation's scheme.

``http`` (websockets, by aiohttp without its environment) and ``tcp`` take no notice of proxies. gRPC takes the first of
`GRPC_VARIABLES`, whose names are in small letters only, by the method CONNECT.
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

SECONDS = 10.0
"""How long each step may take."""

GRPC_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables that gRPC reads, first one first."""

VARIABLES = (*GRPC_VARIABLES, "HTTPS_PROXY")
"""Variables in which a proxy may be named."""

MAX_HEAD = 65536
"""Bytes of an answer's head, at most."""


class NoRouteError(MedflError):
    """The server can't be reached; the message says why and what to do."""


@dataclass(frozen=True)
class Address:
    """The server, as a site's kit names it.

    Attributes:
        host: Its name.
        port: Its port.
        scheme: ``http``, ``grpc`` or ``tcp``.
        identity: The name in its certificate.
    """

    host: str
    port: int
    scheme: str
    identity: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def address_of(kit: Path) -> Address:
    """The server of a site's kit.

    Raises:
        SettingsError: If the kit names none.
    """
    path = kit / "startup" / "fed_client.json"
    try:
        server = json.loads(path.read_text(encoding="utf-8"))["servers"][0]
        host, _, port = server["service"]["target"].rpartition(":")
        return Address(host, int(port), server["service"].get("scheme", "http"), server.get("identity", host))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise SettingsError(
            "invalid_kit", f"expected '{path}' to name a server; it does not. Ask whoever made the kit", path=path
        ) from None


def proxy_for(address: Address) -> tuple[str, str] | None:
    """The variable that names a proxy for a server, and the proxy; None where none is, or `no_proxy` excepts it."""
    if urllib.request.proxy_bypass(address.host):
        return None
    return next(((name, value) for name in VARIABLES if (value := os.environ.get(name))), None)


def takes_proxy(address: Address, variable: str) -> bool:
    """Whether NVFlare would take the proxy that a variable names."""
    return address.scheme in ("grpc", "agrpc", "nagrpc") and variable in GRPC_VARIABLES


def straight(address: Address) -> socket.socket:
    """A connection to the server.

    Raises:
        NoRouteError: If there is none.
    """
    try:
        return socket.create_connection((address.host, address.port), SECONDS)
    except socket.gaierror:
        raise NoRouteError(
            "unknown_host",
            f"the name '{address.host}' is not known here; ask for the server's name as sites resolve it, or write it "
            "into /etc/hosts",
            host=address.host,
        ) from None
    except ConnectionRefusedError:
        raise NoRouteError(
            "connection_refused",
            f"the machine at {address} is there and nothing listens at the port: is the server started (`medfl "
            "federate start KIT`), and is the port right?",
            address=str(address),
        ) from None
    except OSError as error:
        raise NoRouteError(
            "server_unreachable",
            f"{address} does not answer ({error.strerror or error}): a firewall here or there stops it; have outgoing "
            f"TCP to port {address.port} of that machine allowed",
            address=str(address),
        ) from None


def through(proxy: str, address: Address) -> socket.socket:
    """A connection to the server through a proxy, by the method CONNECT.

    Args:
        proxy: Its URL, or host and port.
        address: The server.

    Raises:
        NoRouteError: If the proxy is not there, or refuses.
    """
    url = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    where = f"{url.hostname}:{url.port or 80}"
    words = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if url.username:
        secret = f"{urllib.parse.unquote(url.username)}:{urllib.parse.unquote(url.password or '')}"
        words.append("Proxy-Authorization: Basic " + base64.b64encode(secret.encode()).decode())
    try:
        connection = socket.create_connection((url.hostname or "", url.port or 80), SECONDS)
        connection.sendall("\r\n".join([*words, "", ""]).encode())
        head = read_head(connection)
    except OSError as error:
        raise NoRouteError(
            "proxy_unreachable",
            f"the proxy {where} does not answer ({error.strerror or error}); correct the variable that names it",
            proxy=where,
        ) from None
    status = head.split(" ", 2)[1] if head.startswith("HTTP/") and " " in head else "nothing that is HTTP"
    if status != "200":
        connection.close()
        mend = "give user and password in its URL" if status == "407" else f"have CONNECT to {address} allowed there"
        raise NoRouteError(
            "proxy_refused", f"the proxy {where} refuses (it says {status}); {mend}", proxy=where, status=status
        )
    return connection


def read_head(connection: socket.socket) -> str:
    """The head of an HTTP answer, byte by byte, so that nothing that follows is taken.

    Raises:
        OSError: If the connection ends or stalls.
    """
    head = b""
    while not head.endswith(b"\r\n\r\n") and len(head) < MAX_HEAD:
        part = connection.recv(1)
        if not part:
            break
        head += part
    return head.decode("latin-1")
