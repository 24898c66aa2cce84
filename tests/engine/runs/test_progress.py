"""Test the progress events of a run, and that the run does not depend on them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from run_events import done, events_of, read_events, start
from toys import SIZES, builtin, snapshot

from medfl.engine.backends import local as module_of_local
from medfl.engine.evaluation import MetricRow
from medfl.engine.runs import progress as module
from medfl.engine.runs.progress import PROGRESS, ProgressFile, record_progress, step_metrics
from medfl.errors import DataError
from medfl.records.progress import (
    CommittedStep,
    Heartbeat,
    JobEnd,
    JobStart,
    ProgressLine,
    RunEnd,
    RunStart,
    RunStop,
    StepCosts,
    StepMetrics,
)
from medfl.testing.cohort import make_sites

PAIR = {"site-1": 7, "site-2": 5}


DONE = JobEnd(sites=("a",), job="step")


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in read_events(folder)]


# ---- the file


def test_events_are_lines_with_their_time(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, clock=lambda: 12.3456)
    file.note(JobStart(sites=("a",), job="step", activity="training"))
    file.note(DONE)
    lines = (tmp_path / PROGRESS).read_bytes().splitlines()
    assert [ProgressLine.from_bytes(line).time for line in lines] == [12.346] * 2
    assert kinds(tmp_path) == ["job_start", "job_end"]


def test_a_line_that_a_kill_cut_is_ended_and_the_next_one_is_whole(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_bytes(done(1, "a").to_bytes() + done(2, "a").to_bytes()[:12])
    ProgressFile(tmp_path).note(DONE)
    lines = (tmp_path / PROGRESS).read_bytes().splitlines()
    assert [ProgressLine.from_bytes(line) is not None for line in lines] == [True, False, True]


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
        file.note(RunStop(error="E"))
    monkeypatch.setattr(module.os, "write", write)
    file.note(DONE)
    assert ProgressLine.from_bytes((tmp_path / PROGRESS).read_bytes().splitlines()[-1]).event == DONE
    assert caplog.text.count("can't be written (No space left on device)") == 1


def test_a_clock_without_a_valid_time_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ProgressFile(tmp_path, clock=lambda: -1.0).note(DONE)
    assert "can't be written (ValidationError)" in caplog.text


def test_an_error_is_noted_by_its_kind_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError), record_progress(tmp_path, start(0).event):
        raise DataError("bad_image", f"no image at '{tmp_path}/patient-7.png'")
    assert read_events(tmp_path) == [start(0).event, RunStop(error="DataError")]
    assert "patient" not in (tmp_path / PROGRESS).read_text()


# ---- of a run


def test_a_run_notes_its_steps_down_and_a_resumed_one_continues(tmp_path: Path) -> None:
    case = builtin("fedavg")
    case.run(tmp_path, sites=make_sites(PAIR), rounds=1)
    first = read_events(tmp_path)
    assert {event.sites for event in first if isinstance(event, JobStart)} >= {("site-1",), ("site-2",)}
    begin, commit, scored, end = (event for event in first if isinstance(event, RunStart | CommittedStep | RunEnd))
    assert (begin.method, begin.sites, begin.rounds) == ("fedavg", ("site-1", "site-2"), 1)
    assert (commit.round, commit.rounds_done, commit.requested, commit.unavailable) == (1, 1, begin.sites, ())
    assert set(commit.metrics.costs) == set(begin.sites)
    assert scored.metrics.scored_round == 1, "the last commit has the scores"
    assert set(scored.metrics.site_scores["global test"]) == set(begin.sites)
    assert end == RunEnd(status="finished", rounds=1)
    case.run(tmp_path, sites=make_sites(PAIR), rounds=2)
    assert read_events(tmp_path)[: len(first)] == first
    assert kinds(tmp_path).count("run_start") == 2
    assert str(tmp_path) not in (tmp_path / PROGRESS).read_text()


def test_a_finished_run_that_is_given_again_notes_nothing(tmp_path: Path) -> None:
    case = builtin("fedavg")
    for _ in range(2):
        case.run(tmp_path, sites=make_sites(PAIR), rounds=1)
    assert kinds(tmp_path).count("run_start") == kinds(tmp_path).count("run_end") == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_work_begins_before_it_is_done_at_every_site_whoever_does_it(tmp_path: Path, workers: int) -> None:
    builtin("fedavg").run(tmp_path, sites=make_sites(PAIR), rounds=1, workers=workers)
    for site in PAIR:
        jobs = [event for event in read_events(tmp_path) if isinstance(event, JobStart | JobEnd)]
        own = [event.kind for event in jobs if site in event.sites]
        assert own == ["job_start", "job_end"] * (len(own) // 2)
        assert len(own) >= 4, "training, and scoring"


def test_a_run_has_the_same_bits_where_nothing_can_be_noted_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = builtin("fedavg")
    case.run(tmp_path / "watched", sites=make_sites(SIZES))
    monkeypatch.setattr(module, "PROGRESS", "no/such/folder/progress.jsonl")
    case.run(tmp_path / "alone", sites=make_sites(SIZES))
    assert snapshot(tmp_path / "alone") == snapshot(tmp_path / "watched")
    assert caplog.text.count("`medfl monitor` won't show all events of the run") == 1


def test_under_privacy_no_number_of_batches_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Chatty(module_of_local.HeartbeatSender):  # type: ignore[name-defined, misc]
        """Sender that also sends a heartbeat at its end."""

        def __exit__(self, *error: object) -> None:
            self._send(self.beat())
            super().__exit__(*error)

    monkeypatch.setattr(module_of_local, "HeartbeatSender", Chatty)
    privacy = {"epsilon": 5.0, "clip": 1.0}
    for folder, settings in (
        (tmp_path / "plain", {}),
        (tmp_path / "private", {"privacy": privacy, "norm_sync": "params"}),
    ):
        builtin("fedavg").run(folder, sites=make_sites(PAIR), rounds=1, **settings)
    plain, private = (events_of(tmp_path / name, Heartbeat) for name in ("plain", "private"))
    assert all(beat.batch == beat.batches for beat in plain if beat.activity == "training")
    assert None not in {beat.batch for beat in plain}
    assert len(private) == len(plain)
    assert {(beat.batch, beat.batches) for beat in private} == {(None, None)}
    assert all(beat.has_progressed for beat in plain + private)


# ---- what rows say in short


def row(site: str, metric: str, value: float, split: str = "test", model: str = "global") -> MetricRow:
    return MetricRow(2, site, model, split, "trained" if split == "train" else "aggregated", metric, value)


def test_rows_in_short() -> None:
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
    assert step_metrics(rows, "auc") == StepMetrics(
        scored_round=2,
        scores={"global test auc": 0.625, "global test f1": 0.25, "global val auc": 0.125},
        site_scores={"global test": {"a": 0.5, "b": 0.75}, "global val": {"a": 0.125}},
        server_scores={"global global test auc": 0.9},
        training_loss=3.0,
        costs={"a": StepCosts(work_seconds=1.5, bytes_up=7.0)},
    )
    assert step_metrics([], "auc") == StepMetrics()


def test_values_that_no_event_can_hold_are_left_out_and_end_no_run() -> None:
    rows = [
        row("a", "auc", 1e200),
        row("b", "auc", 0.5),
        row("a", "loss", 1e308, "train"),
        row("b", "loss", 1e308, "train"),
        row("a", "work_seconds", -1.0, "train"),
        row("a", "bytes_up", 1e30, "train"),
    ]
    assert step_metrics(rows, "auc") == StepMetrics(scored_round=2, site_scores={"global test": {"b": 0.5}})
