"""Event files that anybody wrote: no number and no text in them ends or steers the monitor."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from run_events import SITES, beat, commit, done, end, missing, start, stop, work, write

from medfl.records.progress import ProgressLine
from medfl.settings import Privacy
from medfl_report.monitor.monitor_page import render_runs
from medfl_report.monitor.monitored_folders import MonitoredFolder
from medfl_report.monitor.page_server import serve_page
from medfl_report.monitor.run_state import RunState
from medfl_report.monitor.run_view import make_run_view
from medfl_report.monitor.terminal_view import render_views

pytestmark = pytest.mark.usefixtures("undrawn")

LINES = [
    start(0, privacy=Privacy(epsilon=8.0, clip=1.0)), work(1, *SITES), beat(2, "site-1"), done(3, "site-1"),
    missing(4, "site-2", "why"),
    commit(5, 1), commit(6, 2), end(9, 1), stop(10, "E"),
]  # fmt: skip
HOSTILE = [1e308, float("inf"), float("nan"), 10**400, 2**63, 253402300800, -62135596801, -1, "\x1b[2J", None, [], {}]


def places(value: Any, *to: Any) -> list[tuple[Any, ...]]:
    """Return the paths of keys to all values that contain no other values."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [place for key, part in parts for place in places(part, *to, key)]
    return [to]


def with_value(line: ProgressLine, place: tuple[Any, ...], value: Any) -> bytes:
    changed = part = line.to_json()
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return json.dumps(changed).encode()


@pytest.mark.parametrize("number", range(len(LINES)))
def test_no_value_of_an_event_ends_the_monitor_or_fills_the_memory(number: int) -> None:
    for place in places(LINES[number].to_json()):
        for value in HOSTILE:
            state = RunState()
            hostile = ProgressLine.from_bytes(with_value(LINES[number], place, value))
            for line in [*LINES[:number], hostile, *LINES[number + 1 :]]:
                if line is not None:
                    state.apply(line.time, line.event)
            view = make_run_view("one", state, state.last_event_at, None)
            assert view.last_round < 10**8
            page = render_runs([view])
            assert "\x1b" not in page
            if number == 6 and {"time", "round", "training_loss", "scores"} & set(place):  # which a terminal draws, too
                console = Console(width=100, record=True, quiet=True)
                console.print(render_views([view]))


def test_a_line_without_end_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, [start(0)])
    with (tmp_path / "progress.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n" + '{"time": ' + "9" * 5000 + "}\n" + commit(5, 1).to_bytes().decode())
    assert MonitoredFolder(tmp_path).views()[0].rounds_done == 1


def test_names_of_folders_steer_no_terminal(tmp_path: Path) -> None:
    write(tmp_path / "a\x1b[2J", [start(0)])
    write(tmp_path / "b", [start(0)])
    assert [view.name for view in MonitoredFolder(tmp_path).views()] == ["a\\x1b[2J", "b"]


@pytest.mark.parametrize("path", ["//[", "http://[", "/%00", "/\xff", "/?token"])
def test_an_address_that_is_none_is_answered_as_any_other(
    tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [start(0)])
    with serve_page(MonitoredFolder(tmp_path), "runs", token="a-token-of-a-test") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.connect()
        connection.sock.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode("latin-1"))
        with connection.sock.makefile("rb") as answer:
            assert b" 403 " in answer.read()
        connection.close()
    assert "Traceback" not in capsys.readouterr().err
