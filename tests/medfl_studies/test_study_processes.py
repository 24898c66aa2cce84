"""Processes of a study, and locks of its folders."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import StoreError
from medfl_studies.jobs import RunJob
from medfl_studies.launchers.local_launcher import LocalLauncher
from medfl_studies.processes import RunProcesses
from medfl_studies.runner import lock_study_folder, run_jobs


def job(folder: Path) -> RunJob:
    return RunJob("demo", "row", 0, folder, folder, folder / "run" / "seed-0", {"method": "local"})


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RunJob]:
    """Return a function that makes a run from a Python script."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    names = itertools.count()

    class Script(RunJob):
        def command(self) -> list[str]:
            return [sys.executable, "-m", self.row.replace(" ", "_")]

    def make(code: str) -> RunJob:
        name = f"row {next(names)}"
        (tmp_path / f"{name.replace(' ', '_')}.py").write_text(code)
        return Script("demo", name, 0, tmp_path, tmp_path, tmp_path / name / "seed-0", {})

    return make


def test_a_process_leaves_its_words_and_its_status(script: Callable[[str], RunJob]) -> None:
    work = script("import sys; print('hello', sys.argv[1:]); print('world', file=sys.stderr); raise SystemExit(3)")
    processes = RunProcesses()
    try:
        assert processes.launch([*work.command(), "--seed", "5"], work.log) == 3
        assert processes.launch(script("").command(), work.log) == 0
        assert processes.launch(script("import os; os.kill(os.getpid(), 9)").command(), work.log) == -9
    finally:
        processes.close()
    first, *lines = work.log.read_text().splitlines()[:3]
    assert first == f"$ {sys.executable} -m row_0 --seed 5"
    assert sorted(lines) == ["hello ['--seed', '5']", "world"]


def test_two_studies_do_not_work_in_one_folder(tmp_path: Path) -> None:
    with (
        lock_study_folder(tmp_path),
        refused(StoreError, "folder_in_use", path=str(tmp_path)),
        lock_study_folder(tmp_path),
    ):
        pass
    with lock_study_folder(tmp_path):
        pass
    (tmp_path / "file").touch()
    with refused(StoreError, "unwritable_folder", path=str(tmp_path / "file")), lock_study_folder(tmp_path / "file"):
        pass


def test_a_run_that_a_killed_study_left_behind_is_waited_for(tmp_path: Path) -> None:
    """Another process locks the run folder and ends once the wait is announced; then the run is started."""
    left, lines = job(tmp_path), []
    left.folder.mkdir(parents=True)
    hold = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1] + '/.lock', 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); sys.stdin.read(); open(sys.argv[1] + '/ended', 'w').close()\n"
    )
    command = [sys.executable, "-c", hold, str(left.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()

        def say(line: str) -> None:
            lines.append(line)
            if "another process still writes" in line:
                other.stdin.close()  # type: ignore[union-attr] # it ends now

        def start(command: list[str], log: Path) -> int:
            assert (left.folder / "ended").exists(), "started while another process was writing"
            return 1

        run_jobs([left], say, lambda outcome, job: None, LocalLauncher(start))
    assert sum("another process still writes" in line for line in lines) == 1


def test_an_interruption_ends_the_processes_too(script: Callable[[str], RunJob]) -> None:
    """After Ctrl-C, or if the system ends the study, running jobs are ended and waiting jobs are not started."""
    code = "import os, time; print('re' + 'ady', os.getpid(), flush=True); time.sleep(3600)"
    jobs = [script(code) for _ in range(3)]

    def interrupt(*_: object) -> None:
        if all(job.log.exists() and "ready" in job.log.read_text() for job in jobs[:2]):
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_jobs(jobs, lambda line: None, lambda outcome, job: None, LocalLauncher(at_once=2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for job in jobs[:2]:
        with pytest.raises(ProcessLookupError):
            os.kill(int(job.log.read_text().split()[-1]), 0)
    assert not jobs[2].log.exists()


def test_runs_at_once_meet_each_other(tmp_path: Path, script: Callable[[str], RunJob]) -> None:
    """Two runs wait for each other; a third starts when one of them has ended."""
    meet = "import pathlib, time; me, other = map(pathlib.Path, {}); me.touch()\n"
    meet += "while not other.exists(): time.sleep(0.01)"
    ways = [str(tmp_path / name) for name in "ab"]
    codes = [meet.format(ways), meet.format(ways[::-1]), "raise SystemExit(3)"]
    lines: list[str] = []
    jobs = [script(code) for code in codes]
    outcome = run_jobs(jobs, lines.append, lambda outcome, job: None, LocalLauncher(at_once=2))
    assert [outcome.status[job] for job in jobs] == ["not run", "not run", "failed (3)"]  # they write no summary
    begun = [line.splitlines()[0] for line in lines if line.startswith("run ")]
    assert begun == [f"run {number + 1} of 3: demo / row {number} / seed 0" for number in range(3)]
    assert lines.index(next(line for line in lines if line.startswith("run 3"))) > 2, "the third waits for a place"
