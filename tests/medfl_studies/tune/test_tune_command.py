"""Command ``medfl tune``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tune_toys import SMALL, MadeUpTrials, best_near, without_seconds
from typer.testing import CliRunner

from medfl.cli.main import app
from medfl_studies.processes import RunProcesses


def study(folder: Path, **changes: object) -> Path:
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(SMALL | changes, sort_keys=False))
    return file


def test_it_names_winners_files_and_the_next_command(source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, out = MadeUpTrials(best_near(0.01)), tmp_path / "out"
    monkeypatch.setattr(RunProcesses, "launch", lambda self, command, log: runs(command, log))
    words = ["tune", str(study(tmp_path)), "--source", str(source), "--out", str(out)]
    looked = CliRunner().invoke(app, [*words, "--dry-run"])
    assert looked.exit_code == 0, looked.output
    assert looked.stdout.count("--open-test False") == 6
    assert not out.exists()
    assert not runs.calls
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "2 rows with 3 trials of 4 rounds each, by validation auc" in done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["mean", "near"]
    assert [Path(line).name for line in lines[2:6]] == ["small-tuned.yaml", "search.md", "search.csv", "search.json"]
    assert lines[6] == f"next: medfl study {out / 'small-tuned.yaml'} --source {source} --out {out}"


@pytest.mark.slow
def test_a_command_that_was_killed_continues_to_the_same_winners(source: Path, tmp_path: Path) -> None:
    """All processes of the search are killed at once, several times."""
    tune = {"sampler": "random", "trials": 3, "settings": SMALL["tune"]["settings"]}
    file = study(tmp_path, rows={"mean": {"method": "fedavg"}}, tune=tune)

    def begin(out: str) -> subprocess.Popen[bytes]:
        words = [
            sys.executable,
            "-m",
            "medfl",
            "tune",
            str(file),
            "--source",
            str(source),
            "--out",
            str(tmp_path / out),
        ]
        return subprocess.Popen(words, start_new_session=True)

    assert begin("whole").wait() == 0
    for folder in ("trials/mean/trial-000/run.json", "trials/mean/trial-002/metrics.csv"):
        process = begin("broken")
        while not (tmp_path / "broken" / folder).exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert begin("broken").wait() == 0
    assert without_seconds(tmp_path / "whole" / "search.json") == without_seconds(tmp_path / "broken" / "search.json")
    name = "small-tuned.yaml"
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes()
