"""Studies on a real Slurm cluster of one node, which the tests start on this machine."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from refusals import refused
from slurm_cluster import SlurmCluster, running_slurm, wait_until
from typer.testing import CliRunner

from medfl.cli.main import app
from medfl.errors import StoreError
from medfl.testing.synthetic import make_cohort
from medfl.utils.locks import is_being_written
from medfl_report.monitor.monitored_folders import MonitoredFolder
from medfl_studies.jobs import RunJob
from medfl_studies.launchers.launcher import JobEnd, JobStart
from medfl_studies.launchers.resources import Resources
from medfl_studies.launchers.slurm_commands import SlurmCommands
from medfl_studies.launchers.slurm_launcher import SlurmLauncher
from medfl_studies.study import load_study, run_study

pytestmark = pytest.mark.slow

ROUNDS = 40
RUN = {"method": "fedavg", "settings": {"rounds": ROUNDS}}
STUDY = {
    "name": "small",
    "bundle": "medmnist_classification",
    "data": {"demo": {"folder": "cohort"}},
    "metrics": ["accuracy"],
    "settings": {"batch_size": 16, "evaluate_every": ROUNDS},
    "resources": {"cpus": 1, "memory": "700MB", "minutes": 30},
}
ROWS = ("limited", "killed", "cancelled")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with running_slurm(tmp_path_factory.mktemp("slurm")) as slurm, pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.variables.items():
            patch.setenv(name, value)
        yield slurm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_cohort(tmp_path / "cohort", sites=2, images_per_site=20, classes=3)
    for name, rows in (("local", ["alone"]), ("study", ROWS)):
        content = STUDY | {"rows": dict.fromkeys(rows, RUN)}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return tmp_path


def follow_study(file: Path, out: Path) -> None:
    os.setsid()
    with (out.parent / "study.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    run_study(load_study(file, file.parent, out), launcher=SlurmLauncher(out, "small", SlurmCommands(), None, 1.0))


def follow(file: Path, out: Path) -> multiprocessing.Process:
    study = multiprocessing.get_context("fork").Process(target=follow_study, args=(file, out))
    study.start()
    return study


def committed_steps(run: Path) -> int:
    path = run / "progress.jsonl"
    return path.read_text().count("committed_step") if path.exists() else 0


def starts(run: Path) -> int:
    return (run / "progress.jsonl").read_text().count("run_start")


def process_of(run: Path) -> int:
    """Return the process of a run: the one whose command has the run's folder and whose parent is the job's program."""
    for entry in Path("/proc").glob("[0-9]*"):
        words = (entry / "cmdline").read_bytes().split(b"\0") if (entry / "cmdline").exists() else []
        if str(run).encode() in words and b"medfl" in words:
            return int(entry.name)
    raise AssertionError(f"no process works on {run}")


def test_stopped_runs_and_a_killed_study_end_with_the_bits_of_a_local_run(folder: Path, cluster: SlurmCluster) -> None:
    """All runs are preempted. One gets the signal of its time limit, one is killed, one is cancelled."""
    load_study(folder / "study.yaml", folder, folder / "out")  # what it imports is imported before the fork
    out = folder / "out"
    limited, killed, cancelled = runs = [out / "runs" / "demo" / name / "seed-0" for name in ROWS]
    study = follow(folder / "study.yaml", out)
    wait_until(lambda: all(committed_steps(run) >= 2 for run in runs))
    with refused(StoreError, "folder_in_use"):
        follow_in_process(folder, out)

    high = cluster.call(
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        "--partition=high",
        f"--cpus-per-task={cluster.cpus}",
        "--wrap=true",
    )
    wait_until(lambda: cluster.jobs()[high.strip()] == "COMPLETED")
    queued = MonitoredFolder(out)
    wait_until(lambda: queued.read_events() or [view.level for view in queued.views()] == ["warn"] * 3, 30)
    assert [view.is_over for view in queued.views()] == [False] * 3
    steps = {run: committed_steps(run) for run in runs}
    cluster.start_waiting_jobs()
    wait_until(lambda: all(committed_steps(run) > steps[run] for run in runs))
    assert [starts(run) for run in runs] == [2, 2, 2]

    jobs = {run: cluster.job_of(out, run.with_name("seed-0.log")) for run in runs}
    cluster.call("scancel", "--signal=KILL", jobs[cancelled])
    os.kill(process_of(killed), signal.SIGKILL)
    cluster.call("scancel", "--batch", "--signal=USR1", jobs[limited])  # as Slurm does near the time limit
    wait_until(lambda: cluster.jobs()[jobs[limited]] == "PENDING")
    cluster.start_waiting_jobs()
    wait_until(lambda: starts(limited) == starts(killed) == 3)
    assert cluster.jobs()[jobs[cancelled]] == "CANCELLED"
    before = set(cluster.jobs())

    assert study.pid is not None
    os.killpg(study.pid, signal.SIGKILL)
    study.join()
    wait_until(lambda: not is_being_written(out))
    again = CliRunner().invoke(
        app, ["study", f"{folder}/study.yaml", "--source", f"{folder}", "--out", f"{out}", "--launcher", "slurm"]
    )
    assert again.exit_code == 0, again.output
    assert len(set(cluster.jobs()) - before) == 1, "the cancelled run; the others are found again"
    assert [starts(run) for run in runs] == [3, 3, 3]

    outcome = run_study(load_study(folder / "local.yaml", folder, folder / "alone"))
    assert not outcome.unfinished()
    expected = numbers(folder / "alone" / "runs" / "demo" / "alone" / "seed-0")
    assert len(expected) > 5
    for run in runs:
        assert json.loads((run / "summary.json").read_text())["status"] == "finished"
        assert (run / "study.json").is_file()
        assert {name: numbers(run)[name] == value for name, value in expected.items()} == dict.fromkeys(expected, True)


def follow_in_process(folder: Path, out: Path) -> None:
    launcher = SlurmLauncher(out, "small", SlurmCommands())
    run_study(load_study(folder / "study.yaml", folder, out), launcher=launcher)


def numbers(run: Path) -> dict[str, object]:
    """Return all numbers of a run's models, predictions and scores, without times."""
    content: dict[str, object] = {}
    for path in run.rglob("predictions.csv"):
        content[path.relative_to(run).as_posix()] = path.read_bytes()
    for path in run.rglob("model.pt"):
        tensors = torch.load(path, weights_only=True)
        content[path.relative_to(run).as_posix()] = {
            name: (str(tensor.dtype), tensor.shape, tensor.numpy().tobytes()) for name, tensor in tensors.items()
        }
    lines = (run / "metrics.csv").read_text().splitlines()
    content["metrics.csv"] = [line for line in lines if "seconds" not in line]
    return content


# ---- what Slurm itself does, with scripts in place of runs


class Script(RunJob):
    """A Python script that saves steps like a run."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.options["code"], str(self.folder)]

    def inputs_digest(self) -> str:
        return self.options["code"]


STEPS = """
import pathlib, sys, time
state = pathlib.Path(sys.argv[1], "state"); state.mkdir(parents=True, exist_ok=True)
for step in range({steps}):
    path = state / str(step)
    if not path.exists():
        time.sleep({seconds}); path.touch()
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Script]:
    def make(name: str, code: str, **resources: object) -> Script:
        folder = tmp_path / "runs" / "demo" / name / "seed-0"
        options = {"code": code}
        return Script("demo", name, 0, tmp_path, tmp_path, folder, options, resources=Resources(**resources))  # type: ignore[arg-type]

    return make


def events_of(launcher: SlurmLauncher, cluster: SlurmCluster, jobs: list[Script], lines: list[str]) -> list:
    events = []
    launcher.submit(jobs, lines.append)
    launcher._wait = lambda seconds: (cluster.start_waiting_jobs(), __import__("time").sleep(seconds))  # type: ignore[assignment]
    while batch := launcher.poll():
        events += batch
    return events


def test_a_time_limit_of_slurm_continues_a_run_with_progress_and_ends_one_without(
    tmp_path: Path, cluster: SlurmCluster, script: Callable[..., Script]
) -> None:
    steps = script("steps", STEPS.format(steps=40, seconds=2), minutes=1)
    stuck = script("stuck", "import time; time.sleep(600)", minutes=1)
    fails = script("fails", "raise SystemExit(3)", minutes=1)
    lines: list[str] = []
    launcher = SlurmLauncher(tmp_path, "small", SlurmCommands(), None, 1.0)
    ends = {
        event.job: event
        for event in events_of(launcher, cluster, [steps, stuck, fails], lines)
        if isinstance(event, JobEnd)
    }
    assert (ends[steps].exit_status, ends[steps].problem) == (0, "")
    assert len(list((steps.folder / "state").iterdir())) == 40
    assert steps.log.read_text().count("$ ") >= 2
    assert "minutes" in ends[stuck].problem
    assert stuck.log.read_text().count("$ ") == 1, "without progress it is not repeated"
    assert (ends[fails].exit_status, ends[fails].problem) == (3, "")
    assert fails.log.read_text().count("$ ") == 1


def test_resources_and_the_limit_of_an_array_reach_slurm(
    tmp_path: Path, cluster: SlurmCluster, script: Callable[..., Script]
) -> None:
    resources = {"cpus": 2, "memory": "300MB", "minutes": 7, "partition": "high"}
    jobs = [script(name, "import time; time.sleep(600)", **resources) for name in "abc"]
    launcher = SlurmLauncher(tmp_path, "small", SlurmCommands(["--comment=mine"]), 2, 1.0)
    launcher.submit(jobs, print)
    starts = launcher.poll()
    starts += launcher.poll() if len(starts) < 2 else []
    assert starts == [JobStart(jobs[0]), JobStart(jobs[1])]
    places = [cluster.job_of(tmp_path, job.log) for job in jobs]
    shown = cluster.show(places[0])
    expected = {
        "NumCPUs": "2",
        "MinMemoryNode": "300M",
        "TimeLimit": "00:07:00",
        "Partition": "high",
        "Requeue": "1",
        "Comment": "mine",
    }
    assert expected.items() <= shown.items()
    assert [cluster.jobs()[place] for place in places] == ["RUNNING", "RUNNING", "PENDING"]
    for job in places:
        cluster.call("scancel", job)
    ends = []
    while events := launcher.poll():
        ends += [event.problem for event in events if isinstance(event, JobEnd)]
    assert ends == ["cancelled"] * 3


def test_a_refused_job_is_an_error_before_anything_is_written(folder: Path, cluster: SlurmCluster) -> None:
    words = ["study", f"{folder}/study.yaml", "--source", f"{folder}", "--out", f"{folder}/out", "--launcher", "slurm"]
    done = CliRunner().invoke(app, [*words, "--partition", "nowhere"])
    assert done.exit_code != 0
    message = str(done.exception) if done.exception and not isinstance(done.exception, SystemExit) else done.output
    assert "invalid partition specified: nowhere" in message
    assert "Partitions of the cluster: high, low." in message
    assert not (folder / "out").exists()
