"""Orthanc on this machine, with a temporary configuration and storage."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
START_SECONDS = 30.0

TOKEN_FILTER = """function IncomingHttpRequestFilter(method, uri, ip, username, httpHeaders)
  return httpHeaders['authorization'] == 'Bearer %s'
end
"""
"""Script of Orthanc that refuses requests without a bearer token."""


@dataclass(frozen=True)
class Orthanc:
    """A running server. `peer_port` is the port at which it sends images after a C-MOVE to MEDFL.

    With a `token`, it expects this bearer token instead of the user and the password.
    """

    http_port: int
    dicom_port: int
    peer_port: int
    user: str
    password: str
    token: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}/dicom-web"

    def upload(self, contents: Iterable[bytes]) -> None:
        for content in contents:
            self.request("/instances", content)

    def request(self, path: str, content: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}{path}", content)
        basic = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        request.add_header("Authorization", f"Bearer {self.token}" if self.token else f"Basic {basic}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def is_orthanc_installed() -> bool:
    return os.access(_program(), os.X_OK) and PLUGIN.exists()


def _program() -> str:
    return shutil.which("Orthanc") or "/usr/sbin/Orthanc"


@contextlib.contextmanager
def running_orthanc(
    folder: Path, dicom_tls: Mapping[str, object] | None = None, token: str | None = None
) -> Iterator[Orthanc]:
    """Start Orthanc, or skip the test with a reason.

    Args:
        folder: New folder for its files.
        dicom_tls: Configuration that adds TLS to DIMSE, in both directions.
        token: Bearer token of HTTP, which replaces the user and the password.
    """
    if not is_orthanc_installed():
        pytest.skip("Orthanc with its DICOMweb plugin is not installed (apt-get install orthanc orthanc-dicomweb)")
    server = Orthanc(free_port(), free_port(), free_port(), "reader", "a secret password", token)
    allow = {"AllowEcho": True, "AllowFind": True, "AllowGet": True, "AllowMove": True, "AllowStore": True}
    modality = {"AET": "MEDFL", "Host": "127.0.0.1", "Port": server.peer_port, "UseDicomTls": bool(dicom_tls), **allow}
    settings = {
        "Name": "test",
        "StorageDirectory": str(folder / "db"),
        "IndexDirectory": str(folder / "db"),
        "Plugins": [str(PLUGIN)],
        "HttpPort": server.http_port,
        "DicomPort": server.dicom_port,
        "DicomAet": "ORTHANC",
        "RemoteAccessAllowed": True,
        "AuthenticationEnabled": token is None,
        "RegisteredUsers": {server.user: server.password},
        "DicomModalities": {"medfl": modality},
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
        "StableAge": 1,
        **(dicom_tls or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    if token is not None:
        settings["LuaScripts"] = [str(folder / "token.lua")]
        (folder / "token.lua").write_text(TOKEN_FILTER % token)
    path = folder / "orthanc.json"
    path.write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([_program(), str(path)], stdout=log, stderr=log)
        try:
            _wait(server, process, folder / "log")
            yield server
        finally:
            process.terminate()
            process.wait(20)


def _wait(server: Orthanc, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            server.request("/dicom-web/studies")
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"Orthanc did not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
