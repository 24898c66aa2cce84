"""Command ``medfl study`` with real runs that are killed and continued."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from study_toys import contents

from medfl.cli.main import main
from medfl.contract import State
from medfl.engine.journal import Commit, Journal
from medfl.testing.synthetic import make_cohort
from medfl.utils.locks import is_being_written
from medfl_studies.study import load_study, run_study

pytestmark = pytest.mark.usefixtures("undrawn")

STUDY = {
    "name": "small",
    "bundle": "medmnist_classification",
    "data": {"demo": {"folder": "cohort"}},
    "metrics": ["accuracy"],
    "baseline": "alone",
    "settings": {"batch_size": 16, "evaluate_every": 12},
    "scales": {"cpu": {"settings": {"rounds": 1}}},
    "rows": {
        "alone": {"method": "local", "settings": {"rounds": 1}},
        "together": {"method": "fedavg", "settings": {"rounds": 12}},
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_cohort(tmp_path / "cohort", sites=2, images_per_site=20, classes=3, size=8)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEDFL_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def medfl(capfd: pytest.CaptureFixture[str]):
    """Return a function that runs the command line and returns its exit status and output."""

    def run(*arguments: object) -> SimpleNamespace:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        return SimpleNamespace(code=int(end.value.code or 0), out=printed.out, err=printed.err)

    return run


def test_a_dry_run_prints_the_commands_and_writes_nothing(folder: Path, medfl) -> None:
    before = sorted(folder.rglob("*"))
    done = medfl("study", folder / "study.yaml", "--dry-run", "--seeds", 2, "--workers", 2)
    assert done.code == 0, done.err
    lines = [shlex.split(line) for line in done.out.splitlines()]
    assert [(line[line.index("--method") + 1], line[line.index("--seed") + 1]) for line in lines] == [
        ("local", "0"),
        ("fedavg", "0"),
        ("local", "1"),
        ("fedavg", "1"),
    ]
    assert all(line[1:4] == ["-m", "medfl", "run"] and line[-2:] == ["--workers", "2"] for line in lines)
    assert sorted(folder.rglob("*")) == before


def test_single_seeds_can_be_chosen(folder: Path, medfl) -> None:
    done = medfl("study", folder / "study.yaml", "--dry-run", "--seed", 7, "--seed", 3)
    lines = [shlex.split(line) for line in done.out.splitlines()]
    assert [line[line.index("--seed") + 1] for line in lines] == ["7", "7", "3", "3"]


def test_several_studies_are_all_checked_first_and_have_a_folder_each(
    folder: Path, medfl, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "other.yaml").write_text(yaml.safe_dump(STUDY | {"name": "other"}, sort_keys=False))
    files = [folder / "study.yaml", folder / "other.yaml"]
    done = medfl("study", *files, "--dry-run", "--out", folder / "both")
    outputs = [line[line.index("--output-dir") + 1] for line in map(shlex.split, done.out.splitlines())]
    assert {str(Path(path).relative_to(folder)).split("/runs/")[0] for path in outputs} == {"both/study", "both/other"}
    monkeypatch.setattr("medfl_studies.processes.RunProcesses.launch", lambda self, command, log: 3)
    done = medfl("study", *files, "--scale", "cpu")
    assert done.code == 1
    assert done.err.count("failed (3): demo / alone / seed 0; see") == 2, "a failure stops no other study"
    shutil.rmtree(folder / "runs")
    (folder / "other.yaml").write_text(yaml.safe_dump(STUDY | {"baseline": "alon"}, sort_keys=False))
    assert medfl("study", *files, "--scale", "cpu").code == 2
    assert not (folder / "runs").exists()


def test_a_failure_ends_with_status_1_and_names_the_run(folder: Path, medfl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medfl_studies.processes.RunProcesses.launch", lambda self, command, log: 3)
    done = medfl("study", folder / "study.yaml", "--scale", "cpu")
    assert done.code == 1
    assert "failed (3): demo / alone / seed 0; see" in done.err
    assert "failed (3): demo / together / seed 0; see" in done.err
    assert (folder / "runs" / "small-cpu" / "results" / "demo.md").is_file(), "a scale has a folder of its own"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scale", "cpuu"), "Did you mean 'cpu'? Known: cpu, full."),
        (("--source", "nowhere"), "expected the source folder at 'nowhere'"),
        (("--seeds", 0), "--seeds"),
        (("--seeds", 2, "--seed", 5), "Expected either --seeds N"),
        (("--seed", 5, "--seed", 5), "all distinct"),
    ],
)
def test_mistakes_end_with_a_message_and_status_2(folder: Path, medfl, options: tuple, message: str) -> None:
    done = medfl("study", folder / "study.yaml", *options)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--launcher", "slurm"), "there is no program 'sbatch' on this machine"),
        (("--partition", "gpu"), "Expected --launcher slurm with the options of Slurm"),
        (("--launcher", "slurm", "--sbatch=--array=1"), "'--array=1' is not accepted"),
    ],
)
def test_a_cluster_that_is_not_there_and_its_options_without_it_are_mistakes(
    folder: Path, medfl, options: tuple, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    done = medfl("study", folder / "study.yaml", "--scale", "cpu", *options)
    assert done.code == 2
    assert message in done.err
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_a_killed_study_continues_and_leaves_what_is_finished_untouched(folder: Path, medfl) -> None:
    out = folder / "out"
    alone, together = (out / "runs" / "demo" / row / "seed-0" for row in ("alone", "together"))
    work = multiprocessing.get_context("fork").Process(target=study_in_a_group, args=(folder / "study.yaml", out))
    load_study(folder / "study.yaml", out=out)  # what it imports is imported before the fork
    work.start()
    wait_until(lambda: (together / "metrics.csv").exists(), work)
    assert work.pid is not None
    os.killpg(work.pid, signal.SIGKILL)
    work.join()
    wait_until(lambda: not is_being_written(out) and not is_being_written(together))  # processes of the group still end
    assert json.loads((alone / "summary.json").read_text())["status"] == "finished"
    assert not (together / "study.json").exists(), "killed at work"
    before = contents(alone)
    done = medfl("study", folder / "study.yaml", "--out", out, "--clean")
    assert done.code == 0, done.err
    assert not (together / "state").exists()
    assert "1 of 2 runs are already finished" in done.err
    assert "run 2 of 2: demo / together / seed 0" in done.err
    assert contents(alone) == before
    log = together.with_name("seed-0.log").read_text()
    assert log.count("$ ") == 1
    assert "Continuing after step" in log
    rows = pd.read_csv(together / "metrics.csv")
    assert not rows.duplicated(["round", "site", "model", "split", "moment", "metric"]).any()
    table = pd.read_csv(out / "results" / "demo.csv")
    assert table["label"].tolist() == ["alone", "together"]
    assert table["status"].tolist() == ["1 finished", "1 finished"]
    assert (out / "results" / "demo.html").is_file()
    run = json.loads((together / "run.json").read_text())
    assert run["provenance"]["settings"]["rounds"] == {"value": 12, "origin": "study small"}


def study_in_a_group(file: Path, out: Path) -> None:
    os.setsid()
    run_study(load_study(file, out=out), in_a_fork)


def in_a_fork(command: list[str], log: Path) -> int:
    """Run a command in a fork, as the runner does, without importing all modules again."""
    process = multiprocessing.get_context("fork").Process(target=as_a_command, args=(command, log))
    process.start()
    process.join()
    return int(process.exitcode or 0)


def as_a_command(command: list[str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    hold_still_after_round_3()
    try:
        main(command[3:])
    except SystemExit as end:  # a fork of a thread can't end in the usual way: it would wait for that thread
        sys.stdout.flush()
        os._exit(int(end.code or 0))


def hold_still_after_round_3() -> None:
    """Stop a run after round 3, so that it is killed while it runs. The patch affects this fork only."""
    commit = Journal.commit

    def commit_and_wait(self: Journal, state: State, now: Commit) -> None:
        commit(self, state, now)
        if now.rounds_done == 3:
            time.sleep(3600)

    Journal.commit = commit_and_wait  # type: ignore[method-assign]


def wait_until(reached, work: multiprocessing.Process | None = None) -> None:
    while not reached():
        assert work is None or work.is_alive(), "the study ended too early"
        time.sleep(0.02)
