"""A proxy that asks for a password: gRPC itself, and the checks of a site, with a real tinyproxy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures

import pytest
from refusals import refused
from tiny_proxy import PASSWORD, TinyProxy, tiny_proxy

from medfl_flare.sites.preflight.route import NoRouteError, ServerAddress
from medfl_flare.sites.preflight.server import check_port

CLIENT = """\
import grpc, sys
channel = grpc.insecure_channel(sys.argv[1])
try:
    grpc.channel_ready_future(channel).result(float(sys.argv[2]))
except grpc.FutureTimeoutError:
    sys.exit(1)
channel.close()
"""
"""Program that ends with status 0 as soon as a channel of gRPC is connected."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyProxy]:
    with tiny_proxy(tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Run a server of gRPC, and return its address."""
    grpc = pytest.importorskip("grpc")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def connects(server: str, seconds: float, **variables: str) -> tuple[bool, str]:
    """Return whether gRPC connects to a server within some seconds, and its log."""
    command = [sys.executable, "-c", CLIENT, server, str(seconds)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=600)
    return done.returncode == 0, done.stderr


@pytest.mark.parametrize("password", [PASSWORD, "s3%63ret"])
def test_grpc_sends_user_and_password_in_the_url(proxy: TinyProxy, server: str, password: str) -> None:
    """A character of the password may be encoded, as ``@`` and ``:`` must be."""
    before = proxy.connections()
    assert connects(server, 300, grpc_proxy=proxy.url(password))[0]
    assert proxy.connections() > before


def test_grpc_reports_a_wrong_password_and_uses_no_other_way(proxy: TinyProxy, server: str) -> None:
    before = proxy.connections()
    connected, log = connects(server, 3, grpc_proxy=proxy.url("wrong"))
    assert not connected
    assert "HTTP proxy returned response code 401" in log
    assert proxy.connections() == before


def test_grpc_leaves_out_the_proxy_for_named_hosts(proxy: TinyProxy, server: str) -> None:
    before = proxy.connections()
    assert connects(server, 300, grpc_proxy=proxy.url("wrong"), no_grpc_proxy="localhost")[0]
    assert proxy.connections() == before


def test_the_check_of_a_site_takes_the_same_way(proxy: TinyProxy, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ServerAddress("localhost", int(server.rpartition(":")[2]), "grpc", "localhost")
    monkeypatch.setenv("grpc_proxy", proxy.url())
    assert "through the proxy of grpc_proxy" in check_port(address)
    where = f"127.0.0.1:{proxy.port}"
    for url, status in ((proxy.url("wrong"), "401"), (f"http://{where}", "407")):
        monkeypatch.setenv("grpc_proxy", url)
        with refused(NoRouteError, "proxy_refused", proxy=where, status=status) as caught:
            check_port(address)
        assert "give the right user and password" in str(caught.value)
        assert "wrong" not in str(caught.value)
