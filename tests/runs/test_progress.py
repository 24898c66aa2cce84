"""What a run notes down for whoever watches it, and that nothing of the run hangs on it."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from toys import SIZES, builtin, snapshot

from medfl.carriers import local as module_of_local
from medfl.carriers.remote_messages import EVENTS, START
from medfl.core.evaluation import Row
from medfl.errors import DataError
from medfl.runs import progress as module
from medfl.runs.progress import PROGRESS, Mirror, Progress, ProgressFile, noted, read_part, row_facts
from medfl.testing.cohort import make_sites

PAIR = {"site-1": 7, "site-2": 5}


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / PROGRESS).read_text().splitlines()]


def names(folder: Path) -> list[str]:
    return [event["event"] for event in events(folder)]


# ---- the file


def test_events_are_lines_with_their_time(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, clock=lambda: 12.3456)
    file.note("work", {"sites": ["a"]})
    file.note("done", {"sites": ["a"]})
    assert events(tmp_path)[0] == {"t": 12.346, "event": "work", "sites": ["a"]}
    assert names(tmp_path) == ["work", "done"]


def test_a_line_that_a_kill_cut_is_ended_and_the_next_one_is_whole(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_text('{"t": 1, "event": "work"}\n{"t": 2, "eve')
    ProgressFile(tmp_path).note("done", {})
    lines = (tmp_path / PROGRESS).read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2])["event"] == "done"


def test_a_full_disk_is_a_warning_and_later_events_are_whole_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, write = ProgressFile(tmp_path), os.write

    def half(descriptor: int, line: bytes) -> int:
        return write(descriptor, line[: len(line) // 2])

    def full(descriptor: int, line: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for broken in (half, full, full):
        monkeypatch.setattr(module.os, "write", broken)
        file.note("work", {"sites": ["a"]})
    monkeypatch.setattr(module.os, "write", write)
    file.note("done", {})
    assert json.loads((tmp_path / PROGRESS).read_text().splitlines()[-1])["event"] == "done"
    assert caplog.text.count("can't be written (No space left on device)") == 1


def test_what_is_no_json_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ProgressFile(tmp_path).note("work", {"sites": {1, 2}})
    assert "can't be written (TypeError)" in caplog.text


def test_an_error_is_noted_by_its_kind_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError), noted(tmp_path, {}):
        raise DataError("bad_image", f"no image at '{tmp_path}/patient-7.png'")
    assert names(tmp_path) == ["start", "stop"]
    assert events(tmp_path)[-1]["error"] == "DataError"
    assert "patient" not in (tmp_path / PROGRESS).read_text()


# ---- of a run


def test_a_run_notes_its_steps_down_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    case = builtin("fedavg")
    case.run(tmp_path, sites=make_sites(PAIR), rounds=1)
    kinds = [name for name in names(tmp_path) if name in ("start", "commit", "end")]
    assert kinds == ["start", "commit", "commit", "end"], "the last commit has the scores"
    first = events(tmp_path)
    assert {tuple(event["sites"]) for event in first if event["event"] == "work"} >= {("site-1",), ("site-2",)}
    start, commit, scored, end = (event for event in first if event["event"] in ("start", "commit", "end"))
    assert (start["method"], start["sites"], start["rounds"]) == ("fedavg", ["site-1", "site-2"], 1)
    assert (commit["round"], commit["rounds_done"], commit["ordered"], commit["missing"]) == (1, 1, start["sites"], [])
    assert set(commit["costs"]) == set(start["sites"])
    assert scored["scored"] == 1
    assert set(scored["by_site"]["global test"]) == set(start["sites"])
    assert (end["status"], end["away"]) == ("finished", [])
    case.run(tmp_path, sites=make_sites(PAIR), rounds=2)
    assert events(tmp_path)[: len(first)] == first
    assert names(tmp_path).count("start") == 2
    assert str(tmp_path) not in (tmp_path / PROGRESS).read_text()


def test_a_finished_run_that_is_given_again_notes_nothing(tmp_path: Path) -> None:
    case = builtin("fedavg")
    for _ in range(2):
        case.run(tmp_path, sites=make_sites(PAIR), rounds=1)
    assert names(tmp_path).count("start") == names(tmp_path).count("end") == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_work_begins_before_it_is_done_at_every_site_whoever_does_it(tmp_path: Path, workers: int) -> None:
    builtin("fedavg").run(tmp_path, sites=make_sites(PAIR), rounds=1, workers=workers)
    for site in PAIR:
        own = [e["event"] for e in events(tmp_path) if e["event"] in ("work", "done") and site in e["sites"]]
        assert own == ["work", "done"] * (len(own) // 2)
        assert len(own) >= 4, "training, and scoring"


def test_a_run_has_the_same_bits_where_nothing_can_be_noted_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = builtin("fedavg")
    case.run(tmp_path / "watched", sites=make_sites(SIZES))
    monkeypatch.setattr(module, "PROGRESS", "no/such/folder/progress.jsonl")
    case.run(tmp_path / "alone", sites=make_sites(SIZES))
    assert snapshot(tmp_path / "alone") == snapshot(tmp_path / "watched")
    assert caplog.text.count("`medfl watch` won't see all of the run") == 1


def test_under_privacy_no_share_of_the_batches_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Chatty(module_of_local.Pulse):  # type: ignore[name-defined, misc]
        """Sends a heartbeat at the end, too."""

        def __exit__(self, *error: object) -> None:
            self._send(self.beat())
            super().__exit__(*error)

    monkeypatch.setattr(module_of_local, "Pulse", Chatty)
    privacy = {"epsilon": 5.0, "clip": 1.0}
    for folder, settings in (
        (tmp_path / "plain", {}),
        (tmp_path / "private", {"privacy": privacy, "norm_sync": "params"}),
    ):
        builtin("fedavg").run(folder, sites=make_sites(PAIR), rounds=1, **settings)
    plain, private = (
        [event for event in events(tmp_path / name) if event["event"] == "beat"] for name in ("plain", "private")
    )
    assert {event["share"] for event in plain} == {1.0}
    assert len(private) == len(plain)
    assert not any("share" in event for event in private)
    assert all(event["moved"] for event in plain + private)


# ---- what rows say in short


def test_rows_in_short() -> None:
    def row(site: str, metric: str, value: float, split: str = "test", model: str = "global") -> Row:
        return Row(2, site, model, split, "trained" if split == "train" else "aggregated", metric, value)

    rows = [
        row("a", "auc", 0.5),
        row("b", "auc", 0.75),
        row("c", "auc", float("nan")),
        row("a", "f1", 0.25),
        row("global", "auc", 0.9),
        row("a", "auc", 0.1, model="global@b"),
        row("a", "auc", 0.125, "val"),
        row("a", "loss", 2.0, "train", "personal"),
        row("b", "loss", 4.0, "train", "personal"),
        row("a", "work_seconds", 1.5, "train", "personal"),
        row("a", "bytes_up", 7.0, "train", "personal"),
    ]
    facts = row_facts(rows, "auc")
    assert facts["scored"] == 2
    assert facts["scores"] == {"global test auc": 0.625, "global test f1": 0.25, "global val auc": 0.125}
    assert facts["by_site"] == {"global test": {"a": 0.5, "b": 0.75}, "global val": {"a": 0.125}}
    assert facts["at_server"] == {"global global test auc": 0.9}
    assert facts["loss"] == 3.0
    assert facts["costs"] == {"a": {"seconds": 1.5, "up": 7.0}}
    assert row_facts([], "auc") == {}


# ---- on another machine


def test_a_mirror_has_the_same_bytes_however_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 64)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    file, mirror = ProgressFile(here), Mirror(there)
    for number in range(7):
        file.note("work", {"sites": [f"site-{number}"]})
        if number % 2:
            mirror.add(*read_part(here, mirror.known))
    for _ in range(9):
        mirror.add(*read_part(here, mirror.known))
    assert (there / PROGRESS).read_bytes() == (here / PROGRESS).read_bytes()
    (here / PROGRESS).write_text('{"another": "file"}\n')
    mirror.add(*read_part(here, mirror.known))
    assert (there / PROGRESS).read_bytes() == (here / PROGRESS).read_bytes()
    known = mirror.known
    for start, text in ((known + 1, "x\n"), (None, "x\n"), (known, 3), (known, ""), ("0", "x\n")):
        mirror.add(start, text)
    assert mirror.known == known


def test_half_a_line_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_text('{"a": 1}\n{"b": ')
    assert read_part(tmp_path, 0) == (0, '{"a": 1}\n')
    assert read_part(tmp_path, 9) == (9, "")
    assert read_part(tmp_path / "nowhere", 5) == (5, "")


def test_how_far_a_run_is_comes_with_what_is_new(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress()
    assert progress.facts(3) == {
        "state": "starting", "round": 0, "rounds": 0, "scores": {}, "missing": {}, "message": "", START: 3, EVENTS: "",
    }  # fmt: skip
    ProgressFile(tmp_path).note("work", {})
    progress.folder = tmp_path
    facts = progress.facts()
    assert json.loads(facts[EVENTS])["event"] == "work"
    assert str(tmp_path) not in json.dumps(facts)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
