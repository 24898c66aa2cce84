"""The view in a terminal, and plain lines where there is none."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from run_events import SITES, add, commit, done, end, missing, start, work, write

from medfl.engine.runs.progress import PROGRESS
from medfl.engine.store import lock_for_writing
from medfl_report.monitor.monitored_folders import MonitoredFolder
from medfl_report.monitor.terminal_view import monitor, progress_bar, sparkline


def console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=130, force_terminal=terminal, highlight=False, markup=False)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def no_wait(seconds: float) -> None:
    raise AssertionError("the run is over, there is nothing to wait for")


def test_once_shows_all_that_there_is_to_know(tmp_path: Path) -> None:
    events = [start(0), work(1, *SITES), commit(5, 1, ["site-3"]), commit(9, 2, ["site-3"]), work(10, "site-1")]
    folder = write(tmp_path / "one", events)
    screen = console()
    with lock_for_writing(folder):
        monitor(MonitoredFolder(folder), screen, follow=False, wait=no_wait)
    text = shown(screen)
    for part in (
        "fedavg, seed 0, 3 sites",
        "running, round 3 of 3",
        "2 of 3",
        "auc, global model, test images",
        "site-2",
    ):
        assert part in text
    lines = [line.strip("│ ").split() for line in text.splitlines()]
    assert ["site-1", "■■"] in lines
    assert ["site-3", "××"] in lines
    assert "\x1b" not in text


def test_without_a_terminal_there_is_a_line_for_what_happens_until_it_is_over(tmp_path: Path) -> None:
    folder, screen = write(tmp_path / "one", [start(0), commit(5, 1)]), console()
    later = [
        [work(6, *SITES), missing(7, "site-2", "no answer")],
        [commit(9, 2, ["site-2"])],
        [end(12, 2, unavailable=["site-2"])],
    ]

    def wait(seconds: float) -> None:
        add(folder, *later.pop(0))

    with lock_for_writing(folder):
        monitor(MonitoredFolder(folder), screen, follow=True, wait=wait)
    lines = [line.split(" ", 1)[1] for line in shown(screen).splitlines()]
    assert lines == [
        "started: fedavg, 3 rounds at 3 sites",
        "round 1 of 3 completed after 5.0 s",
        "site-2 is unavailable: no answer",
        "round 2 of 3 completed after 4.0 s; without site-2",
        "finished on 2 of 3 sites",
        "finished on 2 of 3 sites, 2 of 3 rounds",
    ]


def test_a_silent_site_has_a_line_of_its_own_once(tmp_path: Path) -> None:
    folder, screen = write(tmp_path / "one", [start(0), work(1, *SITES), done(2, "site-2", "site-3")]), console()
    written = (folder / PROGRESS).stat().st_mtime
    now = [written + 1]

    def wait(seconds: float) -> None:
        now[0] += 30
        if now[0] > written + 150:
            add(folder, end(200))

    with lock_for_writing(folder):
        monitor(MonitoredFolder(folder, lambda: now[0]), screen, follow=True, wait=wait)
    assert shown(screen).count("silent: site-1\n") == 1


@pytest.mark.parametrize("runs", [1, 3])
def test_in_a_terminal_the_view_stays_when_the_runs_are_over(tmp_path: Path, runs: int) -> None:
    for number in range(runs):
        write(tmp_path / str(number), [start(0), commit(5, 1), end(9, 1)])
    screen = console(terminal=True)
    monitor(MonitoredFolder(tmp_path / "0" if runs == 1 else tmp_path), screen, follow=True, wait=no_wait)
    assert "finished" in shown(screen)
    assert ("3 runs, 3 over" in shown(screen)) == (runs == 3)


def test_nothing_there_yet(tmp_path: Path) -> None:
    screen = console()
    monitor(MonitoredFolder(tmp_path), screen, follow=False)
    assert shown(screen) == "No run has started there yet.\n"
    monitor(MonitoredFolder(tmp_path), again := console(), follow=True, wait=no_wait)
    assert shown(again) == shown(screen)


def test_drawings() -> None:
    assert progress_bar(1, 4, 8) == "██░░░░░░"
    assert progress_bar(9, 4, 2) == "██"
    assert progress_bar(0, 0, 3) == "░░░"
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▄▄"


def test_the_command(medfl: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    folder = write(tmp_path / "one", [start(0), commit(5, 1), end(9, 1)])
    code, out, err = medfl("monitor", folder)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"{folder}: finished, 1 of 3 rounds"
    assert "fedavg, seed 0, 3 sites" in medfl("monitor", folder, "--once")[1]
    code, out, err = medfl("monitor", folder, "--once", "--serve")
    assert (code, "not both" in err) == (2, True)
    code, out, err = medfl("monitor", tmp_path / "nowhere")
    assert (code, "expected a folder" in err) == (2, True)
