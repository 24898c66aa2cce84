"""Studies on a real Slurm cluster of one node, which the tests start on this machine."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkProcess
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
from medfl.training.checkpoints import CHECKPOINT_STEM
from medfl.utils import wire
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


@pytest.fixture
def follow() -> Iterator[Callable[[Path, Path], ForkProcess]]:
    """Return a function that follows a study in a process, which is killed if the test fails before it ends."""
    studies = []

    def start(file: Path, out: Path) -> ForkProcess:
        studies.append(multiprocessing.get_context("fork").Process(target=follow_study, args=(file, out)))
        studies[-1].start()
        return studies[-1]

    yield start
    for study in studies:
        if study.is_alive():
            os.killpg(study.pid, signal.SIGKILL)


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


def test_stopped_runs_and_a_killed_study_end_with_the_bits_of_a_local_run(
    folder: Path, cluster: SlurmCluster, follow: Callable[[Path, Path], ForkProcess]
) -> None:
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


def is_to_end(process: int) -> bool:
    """Return whether a stopped process has received SIGTERM, which it acts on when it continues."""
    (pending,) = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if "ShdPnd" in line]
    return bool(int(pending.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_time_limit_of_slurm_within_a_step_continues_with_the_bits_of_a_local_run(
    folder: Path, cluster: SlurmCluster, follow: Callable[[Path, Path], ForkProcess]
) -> None:
    """The run is paused within the training of its first site until Slurm's signal before the limit has arrived."""
    settings = {"rounds": 1, "steps": 300, "evaluate_every": 1, "checkpoint_minutes": 0}
    row = {"method": "fedavg", "settings": settings}
    content = STUDY | {"resources": STUDY["resources"] | {"minutes": 3}, "rows": {"limited": row}}  # type: ignore[operator]
    (folder / "study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    load_study(folder / "study.yaml", folder, folder / "out")
    out = folder / "out"
    run = out / "runs" / "demo" / "limited" / "seed-0"

    def batches() -> int:
        """Return the number of batches before the checkpoint of the training; 0 if there is none."""
        for path in (run / "state").glob(f"*/{CHECKPOINT_STEM}-1.safetensors"):
            return wire.decode(path.read_bytes())[1]["position"]["number"]
        return 0

    study = follow(folder / "study.yaml", out)
    wait_until(batches, step=0.01)
    process = process_of(run)
    os.kill(process, signal.SIGSTOP)
    stopped_at, job = batches(), cluster.job_of(out, run.with_name("seed-0.log"))
    wait_until(lambda: is_to_end(process))
    os.kill(process, signal.SIGCONT)
    wait_until(lambda: cluster.jobs()[job] == "PENDING")
    assert stopped_at <= batches() < settings["steps"]
    stopped_at = batches()
    time.sleep(5)  # slurmd must have forgotten the job before it starts again
    cluster.start_waiting_jobs()
    wait_until(lambda: batches() != stopped_at, step=0.01)
    assert batches() > stopped_at, "it did not begin again"
    study.join()
    assert (study.exitcode, starts(run)) == (0, 2)

    outcome = run_study(load_study(folder / "study.yaml", folder, folder / "alone"))
    assert not outcome.unfinished()
    assert numbers(run) == numbers(folder / "alone" / "runs" / "demo" / "limited" / "seed-0")


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


def test_resources_reach_slurm_and_the_limit_holds(
    tmp_path: Path, cluster: SlurmCluster, script: Callable[..., Script]
) -> None:
    """Three of the jobs have other resources, so they form other arrays."""
    resources = {"cpus": 2, "memory": "300MB", "minutes": 7, "partition": "high"}
    jobs = [script(name, "import time; time.sleep(600)", **resources, gpus=name in "bd") for name in "abcd"]
    launcher = SlurmLauncher(tmp_path, "small", SlurmCommands(["--comment=mine"]), 2, 1.0)
    before = set(cluster.jobs())
    launcher.submit(jobs, print)
    started: list[object] = []
    while len(started) < 2:
        started += launcher.poll()
    assert started == [JobStart(jobs[0]), JobStart(jobs[1])]
    shown = cluster.show(cluster.job_of(tmp_path, jobs[0].log))
    expected = {
        "NumCPUs": "2",
        "MinMemoryNode": "300M",
        "TimeLimit": "00:07:00",
        "Partition": "high",
        "Requeue": "1",
        "Comment": "mine",
    }
    assert expected.items() <= shown.items()
    ends: list[str] = []
    for job in jobs:
        wait_until(lambda job=job: JobStart(job) in started or started.extend(launcher.poll()))  # type: ignore[misc]
        states = [state for number, state in cluster.jobs().items() if number not in before]
        assert sum(state in ("RUNNING", "PENDING") for state in states) <= 2
        cluster.call("scancel", cluster.job_of(tmp_path, job.log))
    while events := launcher.poll():
        started += events
    ends = [event.problem for event in started if isinstance(event, JobEnd)]
    assert ends == ["cancelled"] * 4
    assert len(set(cluster.jobs()) - before) == 4


def test_a_refused_job_is_an_error_before_anything_is_written(folder: Path, cluster: SlurmCluster) -> None:
    words = ["study", f"{folder}/study.yaml", "--source", f"{folder}", "--out", f"{folder}/out", "--launcher", "slurm"]
    done = CliRunner().invoke(app, [*words, "--partition", "nowhere"])
    assert done.exit_code != 0
    message = str(done.exception) if done.exception and not isinstance(done.exception, SystemExit) else done.output
    assert "invalid partition specified: nowhere" in message
    assert "Partitions of the cluster: high, low." in message
    assert not (folder / "out").exists()
