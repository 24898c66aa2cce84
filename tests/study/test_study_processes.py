"""The processes of a study, and who may write where."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from medfl.errors import StoreError
from medfl.study.jobs import Job
from medfl.study.runner import launch, only_study, run_jobs


def job(folder: Path) -> Job:
    return Job("demo", "row", 0, folder, folder, folder / "run" / "seed-0", {"method": "local"})


def test_a_process_leaves_its_words_and_its_status(tmp_path: Path) -> None:
    log = job(tmp_path).log
    assert launch([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], log) == 3
    assert log.read_text().splitlines()[1:] == ["hello"]
    assert log.read_text().startswith("$ ")


def test_two_studies_do_not_work_in_one_folder(tmp_path: Path) -> None:
    with only_study(tmp_path), pytest.raises(StoreError, match="Another `medfl study` works in"), only_study(tmp_path):
        pass
    with only_study(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Could not write to the folder"), only_study(tmp_path / "file"):
        pass


def test_a_run_that_a_killed_study_left_behind_is_waited_for(tmp_path: Path) -> None:
    """Another process holds the run folder and ends after a while; then the run is given again."""
    left, said = job(tmp_path), []
    left.folder.mkdir(parents=True)
    hold = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1] + '/.lock', 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); time.sleep(1); open(sys.argv[1] + '/ended', 'w').close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(left.folder)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()

        def start(command: list[str], log: Path) -> int:
            assert (left.folder / "ended").exists(), "started while another process was writing"
            return 1

        run_jobs([left], said.append, lambda outcome, job: None, start)
    assert sum("another process still writes there" in line for line in said) == 1


def test_an_interruption_ends_the_process_too(tmp_path: Path) -> None:
    """As on Ctrl-C, or when the system ends the study."""
    log = job(tmp_path).log

    def interrupt(*_: object) -> None:
        if "ready" in log.read_text():
            raise KeyboardInterrupt

    code = "import os, time; print('re' + 'ady', os.getpid(), flush=True); time.sleep(60)"
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch([sys.executable, "-c", code], log)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text().split()[-1]), 0)
