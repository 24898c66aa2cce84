"""The page server: secret address, read-only, no content from other addresses, updates by server-sent events."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import refused
from run_events import SITES, commit, missing, start, work, write
from toys import builtin

from medfl.engine.runs.progress import PROGRESS, ProgressFile
from medfl.errors import SettingsError
from medfl.testing.cohort import make_sites
from medfl_report.monitor import page_server
from medfl_report.monitor.monitored_folders import MonitoredFolder
from medfl_report.monitor.page_server import MonitorServer, PageContent, serve_page

TOKEN = "a-token-of-a-test"
EVIL = "<script src='https://evil.example/x.js'></script>"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MonitorServer]:
    monkeypatch.setattr(page_server, "POLL_SECONDS", 0.02)
    write(tmp_path, [start(0), work(1, *SITES), commit(5, 1), missing(6, "site-2", EVIL)])
    with serve_page(MonitoredFolder(tmp_path), f"runs/{EVIL}", token=TOKEN) as server:
        yield server


def ask(server: MonitorServer, path: str, method: str = "GET", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    return connection.getresponse()


def content_of(stream: http.client.HTTPResponse) -> str:
    """Return the content of the next event."""
    while not (line := stream.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    return str(json.loads(line.removeprefix(b"data: ")))


@pytest.mark.parametrize(
    "path", ["/", "", "/events", "/a-token-of-a-tesT/", "/a-token-of-a-test-and-more/", "//", "/%C3%A9/"]
)
def test_without_the_token_there_is_nothing(server: MonitorServer, path: str) -> None:
    answer = ask(server, path)
    assert answer.status == 403
    assert b"site-1" not in answer.read()


@pytest.mark.parametrize("path", ["", "/x", "/page", "/../events", "/events/more", "/events/"])
def test_with_the_token_there_are_the_page_and_its_stream_only(server: MonitorServer, path: str) -> None:
    assert ask(server, f"/{TOKEN}/").status == 200
    assert ask(server, f"/{TOKEN}{path}").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_is_only_read(server: MonitorServer, method: str) -> None:
    assert ask(server, f"/{TOKEN}/", method).status == 501


def test_a_page_of_somebody_else_can_not_ask_in_the_name_of_this_machine(server: MonitorServer) -> None:
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1"):
        assert ask(server, f"/{TOKEN}/", host=host).status == 403
    assert ask(server, f"/{TOKEN}/", host=f"localhost:{server.server_port}").status == 200


def test_the_page_loads_nothing_from_outside_and_runs_only_its_own_script(server: MonitorServer) -> None:
    answer = ask(server, f"/{TOKEN}/")
    text = answer.read().decode()
    assert server.server_address[0] == "127.0.0.1"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+", text.replace("http://www.w3.org/2000/svg", "")))
    assert addresses == {"https://evil.example"}, "as text only"
    assert not re.findall(r"<(?:link|img|iframe|object|base|form)\b", text)
    assert "<script src" not in text
    assert "&lt;script src=" in text
    (nonce,) = re.findall(r"script-src 'nonce-([\w-]+)'", text)
    assert re.findall(r"<script[^>]*>", text) == [f'<script nonce="{nonce}">']
    assert "default-src 'none'" in text
    assert f"'nonce-{nonce}'" not in ask(server, f"/{TOKEN}/").read().decode(), "another one each time"
    assert TOKEN not in text


def test_a_committed_round_comes_by_itself(server: MonitorServer, tmp_path: Path) -> None:
    stream = ask(server, f"/{TOKEN}/events")
    assert stream.headers["Content-Type"] == "text/event-stream"
    assert "1 of 3" in content_of(stream)
    ProgressFile(tmp_path, clock=lambda: 9.0).note(commit(9, 2).event)
    text = content_of(stream)
    assert "2 of 3" in text
    assert "Round 2 of 3 completed after 4.0 s" in text
    assert "<script" not in text


def test_a_real_run_is_seen_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "POLL_SECONDS", 0.02)
    (tmp_path / "run").mkdir()
    with serve_page(MonitoredFolder(tmp_path), "runs", token=TOKEN) as server:
        content: PageContent = server.content
        monkeypatch.setattr(content._folder, "_scanned_at", 0.0)
        stream = ask(server, f"/{TOKEN}/events")
        assert "No run has started there yet" in content_of(stream)
        monkeypatch.setattr("medfl_report.monitor.monitored_folders.RESCAN_SECONDS", 0.0)
        run = threading.Thread(
            target=lambda: builtin("fedavg").run(tmp_path / "run", sites=make_sites({"site-1": 7, "site-2": 5}))
        )
        run.start()
        while "finished" not in (text := content_of(stream)):
            pass
        run.join()
    assert "2 of 2" in text
    assert "<polyline" in text
    assert str(tmp_path) not in text
    assert "site-1 took part in rounds 1 to 2" in text
    assert (tmp_path / "run" / PROGRESS).is_file()


def test_a_port_that_is_taken_is_an_error(server: MonitorServer, tmp_path: Path) -> None:
    with (
        refused(SettingsError, "port_unavailable", port=server.server_port),
        serve_page(server.content._folder, "", server.server_port),
    ):
        pass


def test_the_token_of_each_page_is_its_own(tmp_path: Path) -> None:
    tokens = set()
    for _ in range(2):
        with serve_page(MonitoredFolder(tmp_path), "runs") as server:
            tokens.add(server.token)
            assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    assert len(tokens) == 2
    assert all(len(token) >= 32 for token in tokens)
