"""Test files of unknown origin that are monitored or read: no number or text in them stops or steers the reader."""

from __future__ import annotations

import logging

import pytest

from medfl.engine.attendance import MISSED, TOOK_PART, stretches
from medfl.engine.runs.console import show_log
from medfl.utils.text import one_line, visible_lines


def test_attendance_costs_what_is_known_and_not_what_a_round_is_called() -> None:
    known = {"a": {1: TOOK_PART, 2: TOOK_PART, 10**7: MISSED}}
    (row,) = stretches(known, 10**12).values()
    assert [(stretch.first, stretch.last) for stretch in row] == [
        (1, 2),
        (3, 10**7 - 1),
        (10**7,) * 2,
        (10**7 + 1, 10**12),
    ]


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


# ---- YAML
