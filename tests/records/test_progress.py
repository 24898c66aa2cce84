"""Test lines of progress events: round trip, and invalid lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from run_events import SITES, beat, commit, done, end, line, missing, start, stop, work

from medfl.records.progress import MAX_ROUND, MAX_SCORE, MAX_TIME, ProgressLine, RunStart, SiteExit
from medfl.settings import Privacy

LINES = [
    start(0, privacy=Privacy(epsilon=8.0, clip=1.0), unavailable={"site-3": "refuses the run"}),
    work(1, *SITES),
    beat(2.5, "site-1", 3, 10),
    beat(3, "site-1", None, None, job="step"),
    done(4, "site-1"),
    missing(5, "site-2", "no answer in 60 s: 'ü'\n"),
    commit(6, 1),
    commit(MAX_TIME, 2, ["site-3"]),
    end(9, 1, "incomplete", ["site-3"], "too few"),
    stop(10, "DataError"),
    line(11, SiteExit()),
]


@pytest.mark.parametrize("written", LINES)
def test_a_line_returns_the_event_that_was_written(written: ProgressLine) -> None:
    content = written.to_bytes()
    assert content.count(b"\n") == 1
    assert ProgressLine.from_bytes(content) == written


def test_a_line_holds_no_path_of_a_ledger(tmp_path: Any) -> None:
    privacy = Privacy(epsilon=8.0, clip=1.0, ledger=tmp_path / "ledger", total_epsilon=9.0)
    assert b"ledger" not in start(0, privacy=privacy).to_bytes()


def changed(values: dict[str, Any], **event: Any) -> bytes:
    return json.dumps({**values, "event": {**values["event"], **event}}).encode()


WORK, COMMIT, START = (written.to_json() for written in (LINES[1], LINES[6], LINES[0]))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"7", b"[]", b"{}", b"[" * 100_000, b'{"time": ' + b"9" * 5000 + b"}", b"\xff",
        LINES[1].to_bytes()[:40],
        json.dumps(WORK | {"time": "1"}).encode(),
        json.dumps(WORK | {"time": -1}).encode(),
        json.dumps(WORK | {"time": 2 * MAX_TIME}).encode(),
        json.dumps(WORK | {"patient": "Doe"}).encode(),
        json.dumps({"time": 1}).encode(),
        changed(WORK, kind="other"),
        changed(WORK, sites="site-1"),
        changed(WORK, sites=[1]),
        changed(WORK, patient="Doe"),
        changed(LINES[2].to_json(), batch=1.5),
        changed(LINES[2].to_json(), batch=-1),
        changed(LINES[2].to_json(), batches=0),
        changed(LINES[2].to_json(), batches="all"),
        changed(LINES[8].to_json(), status="\x1b[2J"),
        changed(COMMIT, round=-1),
        changed(COMMIT, round=True),
        changed(COMMIT, round=MAX_ROUND + 1),
        changed(COMMIT, metrics={"training_loss": float("nan")}),
        changed(COMMIT, metrics={"scores": {"auc": 2 * MAX_SCORE}}),
        changed(COMMIT, metrics={"costs": {"site-1": {"bytes_up": -1.0}}}),
        changed(START, privacy={"epsilon": 0.0, "clip": 1.0}),
        changed(START, seed=None),
    ],
)  # fmt: skip
def test_what_is_no_valid_line_is_none(content: bytes) -> None:
    assert ProgressLine.from_bytes(content) is None


def test_the_valid_lines_behind_the_invalid_ones_are_valid() -> None:
    """Check that the unchanged lines are valid, so that each change above is the cause of an invalid line."""
    for values in (WORK, LINES[2].to_json(), COMMIT, START):
        assert ProgressLine.from_bytes(changed(values)) is not None
    assert isinstance(ProgressLine.from_bytes(changed(START, privacy=None)).event, RunStart)
