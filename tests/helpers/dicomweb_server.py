"""A small DICOMweb server on this machine that can misbehave."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

import pydicom
from pacs_images import Place
from pydicom.uid import CTImageStorage

BOUNDARY = "frontier"


@dataclass(frozen=True)
class StoredFile:
    """UIDs of a file, and the ID of its patient."""

    patient_id: str
    study_uid: str
    series_uid: str
    instance_uid: str


@dataclass
class DicomwebServer:
    """Instances and faults.

    `authorization` is the required header. `answer` replaces the answer to a path: it returns status and body, or None
    for the ordinary answer; the body of a status 200 is sent as it is, that of a redirect is the new address.
    """

    contents: Mapping[Place | StoredFile, bytes]
    authorization: str | None = None
    answer: Callable[[str], tuple[int, bytes] | None] = lambda path: None
    pages: bool = True
    class_uid: str = CTImageStorage
    url: str = ""
    see_request: Callable[[str], object] = lambda line: None
    retrieved: Counter[str] = field(default_factory=Counter)
    queries: list[dict[str, list[str]]] = field(default_factory=list)

    def search(self, parts: list[str]) -> list[dict]:
        """The results for a path without the name of the service: studies, series or instances."""
        places = list(self.contents)
        if len(parts) >= 2:
            places = [place for place in places if place.study_uid == parts[1]]
        if len(parts) >= 4:
            places = [place for place in places if place.series_uid == parts[3]]
        level = {1: "study", 3: "series", 5: "instance"}[len(parts)]
        rows = {}
        for place in places:
            row = {"0020000D": {"vr": "UI", "Value": [place.study_uid]}}
            if level != "study":
                row["0020000E"] = {"vr": "UI", "Value": [place.series_uid]}
            if level == "instance":
                row["00080018"] = {"vr": "UI", "Value": [place.instance_uid]}
                row["00080016"] = {"vr": "UI", "Value": [self.class_uid]}
            rows[getattr(place, f"{level}_uid")] = row
        return list(rows.values())


class FolderServer(DicomwebServer):
    """A server of the files in a folder. It searches studies by PatientID, also with wildcards."""

    @classmethod
    def of_files(cls, folder: Path) -> Self:
        contents = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".csv":
                header = pydicom.dcmread(path, stop_before_pixels=True)
                names = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
                contents[StoredFile(*(str(header[name].value) for name in names))] = path.read_bytes()
        return cls(contents)

    def search(self, parts: list[str]) -> list[dict]:
        pattern = self.queries[-1].get("PatientID", ["*"])[0]
        rows = super().search(parts)
        if len(parts) > 1:
            return rows
        fitting = {file.study_uid for file in self.contents if fnmatchcase(file.patient_id, pattern)}
        return [row for row in rows if row["0020000D"]["Value"][0] in fitting]


@contextlib.contextmanager
def serving_dicomweb(server: DicomwebServer, tls: ssl.SSLContext | None = None) -> Iterator[DicomwebServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            server.see_request(self.path)
            if server.authorization and self.headers.get("Authorization") != server.authorization:
                self.send_error(401)
                return
            changed = server.answer(address.path)
            if changed is not None:
                self.reply(*changed, "application/dicom+json")
                return
            parts = address.path.strip("/").split("/")[1:]
            if len(parts) == 6:
                self.retrieve(parts[5])
                return
            query = parse_qs(address.query)
            server.queries.append(query)
            rows = server.search(parts)
            if server.pages:
                offset, limit = int(query["offset"][0]), int(query["limit"][0])
                rows = rows[offset : offset + limit]
            self.reply(200, json.dumps(rows).encode(), "application/dicom+json")

        def retrieve(self, uid: str) -> None:
            server.retrieved[uid] += 1
            content = next(content for place, content in server.contents.items() if place.instance_uid == uid)
            body = b"--%s\r\nContent-Type: application/dicom\r\n\r\n%s\r\n--%s--" % (
                *(BOUNDARY.encode(), content),
                BOUNDARY.encode(),
            )
            self.reply(200, body, f'multipart/related; type="application/dicom"; boundary={BOUNDARY}')

        def reply(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if 300 <= status < 400:
                self.send_header("Location", body.decode())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    class Web(ThreadingHTTPServer):
        def handle_error(self, *arguments: object) -> None:
            pass  # a client that ends a handshake

    with Web(("127.0.0.1", 0), Handler) as web:
        if tls is not None:
            web.socket = tls.wrap_socket(web.socket, server_side=True, do_handshake_on_connect=False)
        server.url = f"{'https' if tls else 'http'}://127.0.0.1:{web.server_port}/dicom-web"
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            web.shutdown()
            thread.join()
