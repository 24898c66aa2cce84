"""tinyproxy on this machine: a real HTTP proxy that permits CONNECT to users with a password."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

USER, PASSWORD = "hospital", "s3cret"
CONFIGURATION = """\
Port {port}
Listen 127.0.0.1
Allow 127.0.0.1
Timeout 600
MaxClients 50
LogLevel Connect
LogFile "{folder}/tinyproxy.log"
BasicAuth {user} {password}
"""


@dataclass(frozen=True)
class TinyProxy:
    """A running proxy.

    Attributes:
        port: Its port on 127.0.0.1.
        log: File with a line for each request.
    """

    port: int
    log: Path

    def url(self, password: str = PASSWORD) -> str:
        """Return the proxy's URL with user and password."""
        return f"http://{USER}:{password}@127.0.0.1:{self.port}"

    def connections(self) -> int:
        """Return the number of connections that the proxy opened for users with the right password."""
        return self.log.read_text().count("Established connection to host")


@contextlib.contextmanager
def tiny_proxy(folder: Path) -> Iterator[TinyProxy]:
    """Start a proxy for `USER`, or skip the test where tinyproxy is not installed."""
    program = shutil.which("tinyproxy", path="/usr/bin:/usr/sbin:/usr/local/bin")
    if program is None:
        pytest.skip("tinyproxy is not installed (apt-get install tinyproxy)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    configuration = folder / "tinyproxy.conf"
    configuration.write_text(CONFIGURATION.format(port=port, folder=folder, user=USER, password=PASSWORD))
    with subprocess.Popen([program, "-d", "-c", str(configuration)], stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60.0
            while not _listens(port):
                assert process.poll() is None, "tinyproxy ended"
                assert time.monotonic() < until, "tinyproxy does not listen"
                time.sleep(0.05)
            yield TinyProxy(port, folder / "tinyproxy.log")
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
