"""Files of anybody that are watched or read: no number and no text of theirs ends or steers what reads them."""

from __future__ import annotations

import http.client
import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from rich.console import Console
from run_events import SITES, beat, commit, done, end, missing, start, stop, work, write

from medfl.engine.attendance import MISSED, TOOK_PART, stretches
from medfl.engine.runs.console import show_log
from medfl.errors import MedflError, SettingsError
from medfl.records.progress import ProgressLine
from medfl.settings import Privacy
from medfl.utils.text import one_line, visible_lines
from medfl_flare.keys import approve
from medfl_flare.records.audit import AuditEntry, add_entry, read_entries
from medfl_flare.sites.audit import in_words
from medfl_report.cards.answers import read_answers
from medfl_report.monitor.folders import WatchedFolder
from medfl_report.monitor.page import content
from medfl_report.monitor.serve import serving
from medfl_report.monitor.state import RunState
from medfl_report.monitor.terminal import frame
from medfl_report.monitor.view import make_view
from medfl_studies.reading import read_study

LINES = [
    start(0, privacy=Privacy(epsilon=8.0, clip=1.0)), work(1, *SITES), beat(2, "site-1"), done(3, "site-1"),
    missing(4, "site-2", "why"),
    commit(5, 1), commit(6, 2), end(9, 1), stop(10, "E"),
]  # fmt: skip
HOSTILE = [1e308, float("inf"), float("nan"), 10**400, 2**63, 253402300800, -62135596801, -1, "\x1b[2J", None, [], {}]


def places(value: Any, *to: Any) -> list[tuple[Any, ...]]:
    """Where there is a value that holds no others."""
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
def test_no_value_of_an_event_ends_the_watch_or_fills_the_memory(number: int) -> None:
    for place in places(LINES[number].to_json()):
        for value in HOSTILE:
            state = RunState()
            hostile = ProgressLine.from_bytes(with_value(LINES[number], place, value))
            for line in [*LINES[:number], hostile, *LINES[number + 1 :]]:
                if line is not None:
                    state.apply(line.time, line.event)
            view = make_view("one", state, state.last, None)
            assert view.last_round < 10**8
            page = content([view])
            assert "\x1b" not in page
            if number == 6 and {"time", "round", "training_loss", "scores"} & set(place):  # which a terminal draws, too
                console = Console(width=100, record=True, quiet=True)
                console.print(frame([view]))


def test_attendance_costs_what_is_known_and_not_what_a_round_is_called() -> None:
    known = {"a": {1: TOOK_PART, 2: TOOK_PART, 10**7: MISSED}}
    (row,) = stretches(known, 10**12).values()
    assert [(stretch.first, stretch.last) for stretch in row] == [
        (1, 2),
        (3, 10**7 - 1),
        (10**7,) * 2,
        (10**7 + 1, 10**12),
    ]


def test_a_line_without_end_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, [start(0)])
    with (tmp_path / "progress.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n" + '{"time": ' + "9" * 5000 + "}\n" + commit(5, 1).to_bytes().decode())
    assert WatchedFolder(tmp_path).views()[0].round == 1


def test_names_of_folders_steer_no_terminal(tmp_path: Path) -> None:
    write(tmp_path / "a\x1b[2J", [start(0)])
    write(tmp_path / "b", [start(0)])
    assert [view.name for view in WatchedFolder(tmp_path).views()] == ["a\\x1b[2J", "b"]


@pytest.mark.parametrize("path", ["//[", "http://[", "/%00", "/\xff", "/?token"])
def test_an_address_that_is_none_is_answered_as_any_other(
    tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [start(0)])
    with serving(WatchedFolder(tmp_path), "runs", token="a-token-of-a-test") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.connect()
        connection.sock.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode("latin-1"))
        with connection.sock.makefile("rb") as answer:
            assert b" 403 " in answer.read()
        connection.close()
    assert "Traceback" not in capsys.readouterr().err


# ---- texts


def test_what_is_logged_steers_no_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root, log = logging.getLogger(), logging.getLogger("medfl")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(log, "handlers", [])
    show_log()
    log.warning("%s is missing: %s", "site-01", "\x1b[2J\x07 why\u202e")
    shown = capsys.readouterr().err
    assert shown == "WARNING site-01 is missing: \\x1b[2J\\x07 why\\u202e\n"


def test_texts_from_elsewhere_are_one_line_or_written_out() -> None:
    assert one_line("a\x1b[2J\nINFO forged\r\tb", 60) == "a [2J INFO forged b"
    assert len(one_line("x" * 10**6, 2000)) == 2000
    assert visible_lines("a\nb\x1b\r") == "a\nb\\x1b\\r"


@pytest.mark.parametrize("line", [b"{}", b'{"time": 1}', b'{"sender": "x"}', b"[" * 100_000, b"\xff"])
def test_an_edited_line_of_a_record_does_not_hide_the_others(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    entry = AuditEntry(time="t", site="a", kind="hello", outcome="answered")
    add_entry(path, entry)
    path.write_bytes(path.read_bytes() + line + b"\n")
    add_entry(path, entry)
    assert read_entries(path) == [entry, None, entry]
    assert in_words(None).startswith("(a line ")


# ---- YAML

BOMB = "a0: &a0 [lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    "text",
    [BOMB, "a: &a [*a]\n", f"a: {'[' * 3000}{']' * 3000}\n", "{a: " * 3000 + "1" + "}" * 3000, f"a: {'9' * 5000}"],
)
@pytest.mark.parametrize(("reader", "code"), [(read_study, "invalid_yaml"), (read_answers, "unreadable_file")])
def test_yaml_that_is_made_to_explode_is_refused(tmp_path: Path, text: str, reader: Any, code: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with refused(SettingsError, code, path=str(path)) as caught:
        reader(path)
    assert isinstance(caught.value, MedflError)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]\n"])
def test_a_request_for_a_certificate_does_not_explode(tmp_path: Path, text: str) -> None:
    request = tmp_path / "site-01.request.zip"
    with zipfile.ZipFile(request, "w") as archive:
        archive.writestr("request.json", "{}")
        archive.writestr("site.yaml", text)
    with refused(SettingsError, "invalid_certificate_request", path=str(request)):
        approve._read(request, request)


def test_aliases_of_shipped_studies_stay_allowed(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "studies" / "fedskd_table2.yaml"
    assert "*unlike" in path.read_text()
    assert len(read_study(path).rows) > 1
