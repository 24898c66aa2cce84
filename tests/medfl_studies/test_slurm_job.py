"""Program of a job of a Slurm cluster, with a stand-in for ``scontrol``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from medfl_studies.launchers.slurm_job import end_file, run_task
from medfl_studies.records.slurm_files import SlurmBatch, SlurmTask, SlurmTaskEnd


@pytest.fixture
def element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a Python script as a task, and returns the job's exit status and the task's end."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGUSR1)}
    scontrol = tmp_path / "scontrol"

    def run(code: str, scontrol_end: str = "exit 0") -> tuple[int, SlurmTaskEnd | None]:
        scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls; {scontrol_end}\n')
        scontrol.chmod(0o755)
        run_folder = tmp_path / "run"
        (run_folder / "state").mkdir(parents=True, exist_ok=True)
        lines = f"import os, signal, time; state = {str(run_folder / 'state')!r}; medfl = os.getppid()\n"
        command = (sys.executable, "-c", lines + code)
        task = SlurmTask(title="a", command=command, log=str(tmp_path / "a.log"), folder=str(run_folder), inputs="")
        SlurmBatch(job_name="medfl-a", tasks=(task,)).write(tmp_path / SlurmBatch.NAME)
        end_file(tmp_path, 0).unlink(missing_ok=True)
        status = run_task(tmp_path, 0)
        end = SlurmTaskEnd.read(end_file(tmp_path, 0)) if end_file(tmp_path, 0).is_file() else None
        return status, end

    yield run
    for kind, handler in before.items():
        signal.signal(kind, handler)


def test_a_job_writes_how_its_process_ended(element, tmp_path: Path) -> None:
    for code, status in (("print('hello')", 0), ("raise SystemExit(3)", 3), ("os.kill(os.getpid(), 9)", -9)):
        result, end = element(code)
        assert (end.cause, end.exit_status) == ("exit", status)
        assert result == (status if status >= 0 else 137)
    assert "\nhello\n" in (tmp_path / "a.log").read_text()
    assert not (tmp_path / "calls").exists()


def test_a_job_that_slurm_ends_writes_no_end(element) -> None:
    for code in ("os.kill(medfl, signal.SIGTERM); time.sleep(60)", "os.kill(os.getpid(), signal.SIGTERM)"):
        assert element(code) == (143, None)


def test_a_job_near_its_time_limit_queues_itself_again(element, tmp_path: Path) -> None:
    progress = "open(state + '/1', 'w').close(); os.kill(medfl, signal.SIGUSR1); time.sleep(60)"
    assert element(progress) == (143, None)
    assert (tmp_path / "calls").read_text() == "requeue 7\n"
    _, end = element(progress.replace("/1", "/2"), scontrol_end="exit 1")
    assert end.cause == "time_limit"
    killed = progress.replace("/1", "/3")
    assert element(killed, scontrol_end="kill -TERM $$") == (143, None), "Slurm ends the job's processes"
    _, end = element("os.kill(medfl, signal.SIGUSR1); time.sleep(60)")
    assert end.cause == "no_progress"
    assert len((tmp_path / "calls").read_text().splitlines()) == 3
