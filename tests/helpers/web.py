"""A small web server on this machine that can misbehave."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Web:
    """Content of the server. A server that is not `conditional` ignores If-Range.

    `cut` holds, for each request in turn, after how many bytes of its answer the connection is cut (None: not at all).
    """

    content: bytes = b""
    etag: str | None = '"one"'
    modified: str | None = None
    ranges: bool = True
    conditional: bool = True
    shift: int = 0
    lengths: bool = True
    status: list[int] = field(default_factory=list)
    cut: list[int | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    requests: list[tuple[str | None, str | None]] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def serving(web: Web) -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.paths.append(self.path)
            web.requests.append((self.headers.get("Range"), self.headers.get("If-Range")))
            status = web.status.pop(0) if web.status else 200
            if status != 200:
                self.send_error(status)
                return
            start = self.start()
            if start > len(web.content) or (start and start == len(web.content)):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(web.content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.answer(start)

        def start(self) -> int:
            wanted, only_if = self.headers.get("Range"), self.headers.get("If-Range")
            if (
                not wanted
                or not web.ranges
                or (web.conditional and only_if and only_if not in (web.etag, web.modified))
            ):
                return 0
            return int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])

        def answer(self, start: int) -> None:
            body = web.content[start:]
            self.send_response(206 if start else 200)
            if start:
                begin = start + web.shift
                self.send_header("Content-Range", f"bytes {begin}-{len(web.content) - 1}/{len(web.content)}")
            for name, value in (("ETag", web.etag), ("Last-Modified", web.modified)):
                if value:
                    self.send_header(name, value)
            if web.lengths:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cut = web.cut.pop(0) if web.cut else None
            self.wfile.write(body if cut is None else body[:cut])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
