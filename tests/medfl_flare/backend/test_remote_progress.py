"""Progress of a run on another machine: complete lines, the same bytes, and invalid parts are ignored."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from medfl.engine.runs.progress import PROGRESS, ProgressFile
from medfl.records.progress import JobEnd, ProgressLine, RunStop
from medfl_flare.backend import run_progress
from medfl_flare.backend.protocol_messages import LINES_KEY, POSITION_KEY
from medfl_flare.backend.run_progress import ProgressCopy, RunStatus, read_part

DONE = JobEnd(sites=("a",), job="step")


def test_a_mirror_has_the_same_bytes_however_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "MAX_PART_BYTES", 128)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    file, mirror = ProgressFile(here), ProgressCopy(there)
    for number in range(7):
        file.note(RunStop(error=f"{number}"))
        if number % 2:
            mirror.add(*read_part(here, mirror.known))
    for _ in range(9):
        mirror.add(*read_part(here, mirror.known))
    assert (there / PROGRESS).read_bytes() == (here / PROGRESS).read_bytes()
    (here / PROGRESS).write_text('{"another": "file"}\n')
    mirror.add(*read_part(here, mirror.known))
    assert (there / PROGRESS).read_bytes() == (here / PROGRESS).read_bytes()
    known = mirror.known
    for begin, text in ((known + 1, "x\n"), (None, "x\n"), (known, 3), (known, ""), ("0", "x\n")):
        mirror.add(begin, text)
    assert mirror.known == known


def test_half_a_line_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_text('{"a": 1}\n{"b": ')
    assert read_part(tmp_path, 0) == (0, '{"a": 1}\n')
    assert read_part(tmp_path, 9) == (9, "")
    assert read_part(tmp_path / "nowhere", 5) == (5, "")


def test_how_far_a_run_is_comes_with_what_is_new(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    progress = RunStatus()
    assert progress.to_meta(3) == {
        "state": "starting", "round": 0, "rounds": 0, "scores": {}, "missing": {}, "message": "",
        POSITION_KEY: 3, LINES_KEY: "",
    }  # fmt: skip
    ProgressFile(tmp_path).note(DONE)
    progress.folder = tmp_path
    facts = progress.to_meta()
    assert ProgressLine.from_bytes(facts[LINES_KEY].encode()).event == DONE
    assert str(tmp_path) not in json.dumps(facts)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
