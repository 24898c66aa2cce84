"""Tests of progress bars on a terminal; plain lines are tested where they are used."""

from __future__ import annotations

import io
import sys

import pytest

from medfl.utils.progress import progress, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("in_bytes", "shown"), [(False, "8/8"), (True, "8/8 bytes")])
@pytest.mark.parametrize("total", [8, None])
def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch, total, in_bytes, shown):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "100")
    lines: list[str] = []
    with progress("reading", total, "images", lines.append, in_bytes=in_bytes) as show:
        show(8)
    assert "reading" in sys.stderr.getvalue()
    assert (shown in sys.stderr.getvalue()) == (total is not None)
    assert not lines


def test_the_text_beside_the_bar_and_the_total_change(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "100")
    with progress_bar("round", text="starting", clock=None) as show:
        show(1)
        show(2, 5, "accuracy 0.9")
    last = next(line for line in reversed(sys.stderr.getvalue().splitlines()) if "round" in line)
    assert "2/5" in last
    assert "accuracy 0.9" in last
    assert "starting" not in last
    assert ":" not in last, "no clock was asked for"


def test_without_a_terminal_the_caller_says_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    shown: list[tuple[int, int | None, str | None]] = []
    with progress_bar("round", 5, plain=lambda done, total=None, text=None: shown.append((done, total, text))) as show:
        show(1)
        show(2, 6, "better")
    with progress_bar("round", 5) as show:
        show(3)
    assert shown == [(1, None, None), (2, 6, "better")]
    assert sys.stderr.getvalue() == ""
