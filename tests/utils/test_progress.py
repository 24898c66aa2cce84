"""Progress on a terminal; plain lines are tested where they are used."""

from __future__ import annotations

import io
import sys

import pytest

from medfl.utils.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("in_bytes", "shown"), [(False, "8/8"), (True, "8/8 bytes")])
@pytest.mark.parametrize("total", [8, None])
def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch, total, in_bytes, shown):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "100")
    said: list[str] = []
    with progress("reading", total, "images", said.append, in_bytes=in_bytes) as show:
        show(8)
    assert "reading" in sys.stderr.getvalue()
    assert (shown in sys.stderr.getvalue()) == (total is not None)
    assert not said
