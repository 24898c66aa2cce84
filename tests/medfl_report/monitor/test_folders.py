"""Monitored folders: a run, a study or a startup kit; and the epsilon that the ledgers of the sites say is spent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from refusals import refused
from run_events import SITES, add, commit, done, end, start, work, write
from toys import builtin

from medfl.engine.runs.progress import PROGRESS
from medfl.engine.store import lock_for_writing
from medfl.errors import StoreError
from medfl.settings import Privacy
from medfl.testing.cohort import make_sites
from medfl_report.monitor.monitored_folders import RESCAN_SECONDS, MonitoredFolder, MonitoredRun
from medfl_report.monitor.queued_runs import QueuedRuns

PRIVACY = Privacy(epsilon=6.0, clip=1.0)


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_a_run_is_read_further_as_it_grows_and_from_the_start_where_it_is_another_one(tmp_path: Path) -> None:
    run = MonitoredRun(write(tmp_path, [start(0), commit(5, 1)]), "one")
    assert run.read_events()
    assert not run.read_events()
    add(tmp_path, commit(9, 2))
    last = end(12, 2).to_bytes()
    with (tmp_path / PROGRESS).open("ab") as file:
        file.write(last[:20])
    assert run.read_events()
    assert run.state.rounds_done == 2
    with (tmp_path / PROGRESS).open("ab") as file:
        file.write(last[20:])
    assert run.read_events()
    assert run.state.status == "finished"
    (tmp_path / PROGRESS).unlink()
    write(tmp_path, [start(20, rounds=7)])
    assert run.read_events()
    assert (run.state.rounds, run.state.rounds_done, run.state.status) == (7, 0, "")


def test_silence_is_counted_by_the_clock_of_the_machine_that_writes(tmp_path: Path) -> None:
    """The events are of a machine whose clock is years behind; the file was written a moment ago."""
    write(tmp_path, [start(1000), work(1010, *SITES)])
    written = 5e8
    os.utime(tmp_path / PROGRESS, (written, written))
    clock = Clock(written + 20)
    run = MonitoredRun(tmp_path, "one", clock)
    run.read_events()
    assert run.now == 1030
    assert {site.level for site in run.view().sites} == {"work"}
    clock.now += 100
    assert all(site.activity.startswith("silent for 2 min 0 s") for site in run.view().sites)


def test_a_run_that_a_process_holds_is_at_work_and_else_it_was_stopped(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", [start(0), commit(5, 1)])
    with lock_for_writing(folder):
        (view,) = MonitoredFolder(folder).views()
        assert view.status == "running, round 2 of 3"
    (view,) = MonitoredFolder(folder).views()
    assert view.status.startswith("stopped: no process works on it")


def test_a_study_has_the_runs_below_it_also_those_that_begin_later(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "blood" / "fedavg" / "seed-0", [start(0), end(9)])
    clock = Clock(100.0)
    study = MonitoredFolder(tmp_path, clock)
    assert [view.name for view in study.views()] == ["runs/blood/fedavg/seed-0"]
    assert not study.has_writer
    write(tmp_path / "runs" / "blood" / "local" / "seed-0", [start(0), commit(5, 1)])
    study.read_events()
    assert len(study.views()) == 1
    clock.now += RESCAN_SECONDS + 1
    assert study.read_events()
    assert [(view.name, view.is_over) for view in study.views()][1][0] == "runs/blood/local/seed-0"
    with lock_for_writing(tmp_path):
        assert study.has_writer, "between two runs, too"


def test_a_study_on_a_cluster_says_which_runs_wait_and_which_work_elsewhere(tmp_path: Path) -> None:
    """The lock of a run is not held on this machine; the study says more while its own lock is held."""
    names = ("ended", "queued", "running", "unknown")
    for name in names:
        run = write(tmp_path / "runs" / name / "seed-0", [start(0), end(9) if name == "ended" else commit(5, 1)])
        (run / ".lock").touch()
    places = {"runs/ended/seed-0": "queued", "runs/queued/seed-0": "queued", "runs/running/seed-0": "running"}
    QueuedRuns.model_validate({"places": places}).write(tmp_path / QueuedRuns.NAME)
    study = MonitoredFolder(tmp_path)
    assert [view.is_over for view in study.views()] == [True] * 4, "no study waits for them"
    with lock_for_writing(tmp_path):
        study.read_events()
        views = dict(zip(names, study.views(), strict=True))
        (tmp_path / QueuedRuns.NAME).write_text("{")
        study.read_events()
        assert [view.is_over for view in study.views()] == [True] * 4, "without the file"
    assert {name: (view.level, view.is_over) for name, view in views.items()} == {
        "ended": ("good", True),
        "queued": ("warn", False),
        "running": ("work", False),
        "unknown": ("bad", True),
    }
    assert "queued again" in views["queued"].status


def test_a_run_that_can_not_be_monitored_says_why(tmp_path: Path) -> None:
    with refused(StoreError, "missing_folder", path=str(tmp_path / "nowhere")):
        MonitoredFolder(tmp_path / "nowhere")
    (tmp_path / "run.json").write_text("{}")
    with refused(StoreError, "missing_file", path=str(tmp_path / PROGRESS)) as caught:
        MonitoredFolder(tmp_path)
    assert "`medfl status`" in str(caught.value)


def test_what_is_spent_is_what_the_accounts_of_the_sites_say(tmp_path: Path) -> None:
    case, sites = builtin("fedavg"), make_sites({"site-1": 7, "site-2": 5})
    settings = {"privacy": PRIVACY.model_dump(), "norm_sync": "params", "rounds": 2}
    result = case.run(tmp_path / "one", sites=sites, **settings)
    run = MonitoredRun(tmp_path / "one", "one")
    run.read_events()
    spent = {site.name: site.epsilon for site in run.view().sites}
    assert spent == {site: pytest.approx(facts.epsilon) for site, facts in result.summary.privacy.items()}
    assert spent["site-1"] == pytest.approx(6.0, rel=1e-3), "all rounds are over, so all is spent"


def test_where_the_accounts_are_elsewhere_the_noise_that_hides_a_site_says_it(tmp_path: Path) -> None:
    events = [start(0, privacy=PRIVACY, rounds=2), work(1, *SITES), done(2, *SITES), commit(5, 1, ["site-3"])]
    write(tmp_path, events)
    run = MonitoredRun(tmp_path, "one")
    run.read_events()
    first, second, third = (site.epsilon for site in run.view().sites)
    assert first == second
    assert 0 < first < 6.0
    assert third == 0, "nothing of it left it"
    add(tmp_path, commit(9, 2))
    run.read_events()
    assert run.view().sites[0].epsilon == pytest.approx(6.0, rel=1e-3)
    images = Privacy(unit="sample", epsilon=6.0, clip=1.0)
    write(tmp_path / "images", [start(0, privacy=images), commit(5, 1)])
    other = MonitoredRun(tmp_path / "images", "images")
    other.read_events()
    assert other.view().sites[0].epsilon is None
    assert other.view().privacy == "epsilon of 6 for an image; only each site knows how much is spent"
