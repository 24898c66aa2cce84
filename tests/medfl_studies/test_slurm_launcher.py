"""Launcher of a Slurm cluster, with a stand-in for Slurm's programs."""

from __future__ import annotations

import math
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import SettingsError, StoreError
from medfl_report.monitor.queued_runs import QueuedRuns
from medfl_studies.jobs import RunJob
from medfl_studies.launchers.launcher import JobEnd, JobStart
from medfl_studies.launchers.resources import Resources
from medfl_studies.launchers.slurm_commands import (
    MAX_NAMES,
    SlurmCommands,
    TaskState,
    resource_options,
    user_options,
)
from medfl_studies.launchers.slurm_job import end_file
from medfl_studies.launchers.slurm_launcher import GONE_SECONDS, MAX_STOPS, SETTLE_SECONDS, SlurmLauncher
from medfl_studies.records.slurm_files import SlurmBatch, SlurmTaskEnd
from medfl_studies.runner import run_jobs


class Job(RunJob):
    """A run whose inputs are its options, and whose state is a result if it has saved a step."""

    def status(self) -> str:
        return "finished" if (self.folder / "state").is_dir() else "not run"

    def mark_done(self) -> None:
        pass

    def inputs_digest(self) -> str:
        return str(self.options)


@dataclass
class Cluster:
    """Stand-in for Slurm's programs. `states_by_name` maps the name of an array to the states of its elements."""

    arrays: list[tuple[Path, str, int, Resources]] = field(default_factory=list)
    states_by_name: dict[str, list[str | None]] = field(default_factory=dict)
    is_reachable: bool = True

    def check(self, resources: Resources) -> None:
        self.answer()

    def submit(self, batch: Path, job_name: str, count: int, resources: Resources) -> None:
        assert len(SlurmBatch.read(batch / SlurmBatch.NAME).tasks) == count, "the file comes before the array"
        self.arrays.append((batch, job_name, count, resources))
        self.states_by_name[job_name] = ["PENDING"] * count
        self.answer()

    def states(self, names: set[str]) -> dict[tuple[str, int], TaskState]:
        if names:
            self.answer()
        return {
            (name, index): TaskState(state, "None", f"7_{index}")
            for name, states in self.states_by_name.items()
            if name in names
            for index, state in enumerate(states)
            if state is not None
        }

    def answer(self) -> None:
        if not self.is_reachable:
            raise StoreError("unreachable_slurm", "no answer")

    def in_queue(self) -> int:
        """Return how many elements of all arrays wait or run."""
        return sum(state in ("PENDING", "RUNNING") for states in self.states_by_name.values() for state in states)

    def set(self, state: str | None, index: int = 0, array: int = -1) -> None:
        self.states_by_name[self.arrays[array][1]][index] = state

    def end(self, cause: str, status: int, index: int = 0, array: int = -1) -> None:
        self.set("COMPLETED", index, array)
        values = {"cause": cause, "exit_status": status, "seconds": 3.0}
        SlurmTaskEnd.model_validate(values).write(end_file(self.arrays[array][0], index))


class Study:
    """A launcher with a stand-in for the cluster, and a clock that each wait moves."""

    def __init__(self, out: Path, cluster: Cluster | None = None, at_once: int | None = None) -> None:
        self.out, self.cluster, self.lines, self.time = out, cluster or Cluster(), [], 0.0
        self.script: list = []
        self.launcher = SlurmLauncher(out, "small", self.cluster, at_once, 10, lambda: self.time, self.wait)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        self.time += seconds
        assert self.time < 1e4, "the launcher waits for ever"
        if self.script:
            self.script.pop(0)()

    def job(self, name: str = "row", resources: Resources | None = None, **options: object) -> Job:
        folder = self.out / "runs" / name / "seed-0"
        return Job("demo", name, 0, self.out, self.out, folder, options, resources=resources or Resources())

    def submit(self, *jobs: Job) -> None:
        self.launcher.submit(jobs, self.lines.append)

    def poll(self, *script) -> list:
        """Return what the launcher reports; each wait runs the next function of the script."""
        self.script = list(script)
        return self.launcher.poll()


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path / "out")


def save_step(job: Job) -> None:
    """Save a file of the run that is newer than all before."""
    folder = job.folder / "state"
    folder.mkdir(parents=True, exist_ok=True)
    newest = max((path.stat().st_mtime_ns for path in folder.iterdir()), default=0)
    path = folder / f"{len(list(folder.iterdir()))}.bin"
    path.touch()
    os.utime(path, ns=(newest + 10**9, newest + 10**9))


# ---- options of sbatch


def test_resources_become_options_of_sbatch() -> None:
    assert resource_options(Resources()) == ["--signal=B:USR1@60"]
    assert resource_options(Resources(cpus=4, memory="16GB", gpus=1, minutes=180, partition="gpu")) == [
        "--cpus-per-task=4",
        "--mem=16G",
        "--gres=gpu:1",
        "--partition=gpu",
        "--time=180",
        "--signal=B:USR1@60",
    ]
    assert resource_options(Resources(gpus=0, minutes=5)) == ["--time=5", "--signal=B:USR1@30"]


def test_a_row_overrides_resources_of_the_study(load) -> None:
    prepared = load(
        {
            "resources": {"cpus": 4, "gpus": 1, "minutes": 60},
            "rows__alone__resources": {"gpus": 0, "memory": "2GB"},
        }
    )
    alone, other = prepared.jobs[:2]
    assert alone.resources == Resources(cpus=4, gpus=0, minutes=60, memory="2GB")
    assert other.resources == Resources(cpus=4, gpus=1, minutes=60)
    plain = load()
    assert [job.command() for job in plain.jobs] == [job.command() for job in prepared.jobs]
    assert "resources" not in plain.jobs[0].options


@pytest.mark.parametrize(
    ("resources", "key"),
    [
        ({"memory": "16"}, "memory"),
        ({"memory": "16 GB"}, "memory"),
        ({"cpus": 0}, "cpus"),
        ({"minutes": 1.5}, "minutes"),
        ({"partition": "gpu --wrap=x"}, "partition"),
        ({"cpu": 4}, "cpu"),
    ],
)
def test_wrong_resources_are_refused(load, resources: dict, key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({"resources": resources})
    assert caught.value.fields["settings"] == [f"resources.{key}"]


def test_options_of_the_user_are_checked() -> None:
    assert user_options("gpu", "p1", ["--qos=low"]) == ["--partition=gpu", "--account=p1", "--qos=low"]
    assert user_options(None, None, []) == []
    for option in ("qos=low", "-q", "--", "--qos low"):
        with refused(SettingsError, "invalid_option", text=option):
            user_options(None, None, [option])
    for option in ("--array=0-3", "--wrap=ls", "--partition=gpu", "--no-requeue"):
        with refused(SettingsError, "reserved_setting", place="--sbatch"):
            user_options(None, None, [option])


def test_commands_name_the_programs_and_missing_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sbatch"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    commands = SlurmCommands(user_options("gpu", None, ["--qos=low"]))
    commands.submit(tmp_path / "100%", "medfl-a", 3, Resources(cpus=2, partition="cpu"))
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:3] == ["--parsable", "--array=0-2", "--job-name=medfl-a"]
    assert f"--output={tmp_path}/100%%/slurm-%a.out" in words
    assert words.index("--partition=cpu") < words.index("--partition=gpu"), "the command line is stronger"
    assert words[-1] == f"--wrap=exec {sys.executable} -m medfl_studies.launchers.slurm_job {tmp_path}/100%"
    with refused(SettingsError, "missing_program", program="squeue"):
        commands.states({"medfl-a"})
    for text, kind, code in [
        ("sbatch: error: invalid partition specified: x", SettingsError, "refused_by_slurm"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", StoreError, "unreachable_slurm"),
    ]:
        program.write_text(f"#!/bin/sh\necho '{text}' >&2; exit 1\n")
        with refused(kind, code, reason=text):
            commands.check(Resources())


def test_the_states_of_many_arrays_take_several_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in of ``squeue`` answers each call with one running element of every array that it is asked for."""
    program = tmp_path / "squeue"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'calls')!r}, 'a').write('x')\n"
        "(names,) = [word.partition('=')[2] for word in sys.argv if word.startswith('--name=')]\n"
        "for name in names.split(','): print(f'{name}|3|RUNNING|7_3|None')\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    names = [f"medfl-{number}" for number in range(MAX_NAMES + 1)]
    assert SlurmCommands().states(names) == {(name, 3): TaskState("RUNNING", "None", "7_3") for name in names}
    assert (tmp_path / "calls").read_text() == "xx"
    assert SlurmCommands().states([]) == {}


# ---- the study's side


def names_of(array: tuple[Path, str, int, Resources]) -> list[str]:
    """Return the rows of an array's tasks."""
    return [Path(task.folder).parent.name for task in SlurmBatch.read(array[0] / SlurmBatch.NAME).tasks]


def test_jobs_with_equal_resources_share_an_array(study: Study) -> None:
    big = Resources(cpus=8)
    study.submit(study.job("a"), study.job("b", big), study.job("c"))
    arrays = study.cluster.arrays
    assert [(count, resources) for _, _, count, resources in arrays] == [(2, Resources()), (1, big)]
    names = [name for _, name, *_ in arrays]
    assert len(set(names)) == 2
    assert all(name.startswith("medfl-small-") for name in names)
    assert [names_of(array) for array in arrays] == [["a", "c"], ["b"]]


def test_the_limit_holds_over_all_arrays_and_for_stopped_jobs(tmp_path: Path) -> None:
    study = Study(tmp_path, at_once=2)
    cluster, big = study.cluster, Resources(cpus=8)
    jobs = {name: study.job(name, big if name == "b" else None) for name in "abcde"}
    study.submit(*jobs.values())
    assert [names_of(array) for array in cluster.arrays] == [["a"], ["b"]], "the first two, of different resources"
    assert study.poll(lambda: cluster.set("RUNNING", array=0)) == [JobStart(jobs["a"])]
    assert QueuedRuns.read(tmp_path / QueuedRuns.NAME).places == {
        f"runs/{name}/seed-0": "running" if name == "a" else "queued" for name in jobs
    }
    cluster.end("time_limit", -15, array=0)  # stopped, so before those that never ran
    cluster.end("exit", 0, array=1)
    assert study.poll() == [JobStart(jobs["b"]), JobEnd(jobs["b"], 0, 3.0)]
    assert [names_of(array) for array in cluster.arrays[2:]] == [["a", "c"]]
    seen = []
    for array in (2, 3, 4):
        for index in range(cluster.arrays[array][2]):
            cluster.end("exit", 0, index, array)
            study.poll()
            seen.append(cluster.in_queue())
    assert seen == [2, 2, 1, 0]
    assert [names_of(array) for array in cluster.arrays[3:]] == [["d"], ["e"]]
    assert study.poll() == []


def test_jobs_of_an_earlier_command_count_for_the_limit(tmp_path: Path) -> None:
    killed = Study(tmp_path, at_once=2)
    killed.submit(*map(killed.job, "abc"))
    cluster = killed.cluster
    study = Study(tmp_path, cluster, at_once=1)
    study.submit(*map(study.job, "abc"))
    assert cluster.in_queue() == 2
    for index, left in ((0, 1), (1, 1)):
        cluster.end("exit", 0, index, 0)
        study.poll()
        assert cluster.in_queue() == left
    assert [names_of(array) for array in cluster.arrays] == [["a", "b"], ["c"]]


def test_starts_and_ends_are_reported(study: Study) -> None:
    first, second = study.job("a"), study.job("b")
    study.submit(first, second)
    cluster = study.cluster
    assert study.poll(lambda: cluster.set("RUNNING", 1)) == [JobStart(second)]
    assert QueuedRuns.read(study.out / QueuedRuns.NAME).places == {
        "runs/a/seed-0": "queued",
        "runs/b/seed-0": "running",
    }
    assert study.poll(lambda: cluster.end("exit", 3, 1)) == [JobEnd(second, 3, 3.0)]
    assert study.poll(lambda: cluster.end("exit", 0)) == [JobStart(first), JobEnd(first, 0, 3.0)]
    assert study.poll() == []
    assert QueuedRuns.read(study.out / QueuedRuns.NAME).places == {}
    assert not list((study.out / "slurm").glob("*/end-*")), "an end counts once"


def test_slurm_itself_starts_a_preempted_job_again(study: Study) -> None:
    job = study.job()
    study.submit(job)
    study.poll(lambda: study.cluster.set("RUNNING"))
    events = study.poll(
        lambda: study.cluster.set("PENDING"), lambda: study.cluster.set("RUNNING"), lambda: study.cluster.end("exit", 0)
    )
    assert events == [JobEnd(job, 0, 3.0)]
    assert len(study.cluster.arrays) == 1
    assert [line.split(": ")[1][:9] for line in study.lines[1:]] == ["stopped b", "continues"]


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "TIMEOUT", "FAILED", None])
def test_a_stopped_job_is_submitted_again_while_it_makes_progress(study: Study, state: str | None) -> None:
    job = study.job()
    study.submit(job)
    script = []
    for _ in range(2 * MAX_STOPS):
        script += [lambda: save_step(job), lambda: study.cluster.set(state)]
        script += [lambda: None] * math.ceil((GONE_SECONDS if state in ("FAILED", None) else SETTLE_SECONDS) / 10)
    script.append(lambda: study.cluster.end("exit", 0))
    assert study.poll(*script)[-1] == JobEnd(job, 0, 3.0)
    assert len(study.cluster.arrays) == 2 * MAX_STOPS + 1


@pytest.mark.parametrize(("cause", "status"), [("exit", -signal.SIGKILL), ("state", 0)])
def test_a_job_that_is_killed_without_progress_is_given_up(study: Study, cause: str, status: int) -> None:
    job = study.job()
    study.submit(job)
    save_step(job)
    stop = (lambda: study.cluster.set("NODE_FAIL")) if cause == "state" else lambda: study.cluster.end(cause, status)
    (_, end) = study.poll(*[stop] * 90)
    assert end.job is job
    assert end.problem.startswith(f"stopped {MAX_STOPS} times without a saved step")
    assert len(study.cluster.arrays) == MAX_STOPS + 1, "the first stop came after a saved step"


def test_preemption_does_not_count_as_a_fault(study: Study) -> None:
    job = study.job()
    study.submit(job)
    script = [lambda: study.cluster.set("PREEMPTED"), *[lambda: None] * math.ceil(SETTLE_SECONDS / 10)] * 9
    assert study.poll(*script, lambda: study.cluster.end("exit", 0))[-1] == JobEnd(job, 0, 3.0)
    assert len(study.cluster.arrays) == 10


def test_a_state_before_slurm_starts_the_job_again_itself_is_no_stop(study: Study) -> None:
    job = study.job()
    study.submit(job)
    states = ["PREEMPTED", "PENDING", "NODE_FAIL", "PENDING", None, "RUNNING"]
    study.poll(*[lambda state=state: study.cluster.set(state) for state in states])
    assert study.poll(lambda: study.cluster.end("exit", 0)) == [JobEnd(job, 0, 3.0)]
    assert len(study.cluster.arrays) == 1


@pytest.mark.parametrize(("state", "word"), [("CANCELLED", "cancelled"), ("OUT_OF_MEMORY", "memory")])
def test_cancelled_jobs_and_those_without_memory_are_not_repeated(study: Study, state: str, word: str) -> None:
    study.submit(study.job())
    end = study.poll(lambda: study.cluster.set(state))[-1]
    assert end.exit_status == 1
    assert word in end.problem
    assert len(study.cluster.arrays) == 1


def test_a_time_limit_without_progress_is_an_error_of_the_resources(study: Study) -> None:
    first, second = study.job("a"), study.job("b")
    study.submit(first, second)
    events = study.poll(
        lambda: (study.cluster.end("no_progress", -15), study.cluster.end("time_limit", -15, 1)),
    )
    assert [event.job for event in events] == [first, first]
    assert "minutes" in events[-1].problem
    assert [count for _, _, count, *_ in study.cluster.arrays] == [2, 1], "the second is submitted again"


def test_a_job_that_slurm_queued_after_all_is_not_submitted_again(tmp_path: Path) -> None:
    """The answer to the job's request was lost, so the job wrote that it has to be submitted."""
    killed = Study(tmp_path)
    killed.submit(killed.job())
    killed.cluster.end("time_limit", -15)
    killed.cluster.set("PENDING")
    study = Study(tmp_path, killed.cluster)
    job = study.job()
    study.submit(job)
    assert study.poll(*[lambda: None] * 3, lambda: study.cluster.end("exit", 0)) == [JobStart(job), JobEnd(job, 0, 3.0)]
    assert len(study.cluster.arrays) == 1


def test_a_controller_that_does_not_answer_is_asked_again(study: Study) -> None:
    job = study.job()
    study.submit(job)

    def reach(is_reachable: bool) -> None:
        study.cluster.is_reachable = is_reachable

    wait = [lambda: None] * 20
    events = study.poll(lambda: reach(False), *wait, lambda: reach(True), lambda: study.cluster.end("exit", 0))
    assert events[-1] == JobEnd(job, 0, 3.0)
    assert sum(line.startswith("warning") for line in study.lines) == 1
    assert len(study.cluster.arrays) == 1


def test_a_lost_answer_to_a_submission_submits_nothing_twice(study: Study) -> None:
    job = study.job()
    study.cluster.is_reachable = False
    study.submit(job)
    study.cluster.is_reachable = True
    assert study.poll(lambda: study.cluster.set("RUNNING")) == [JobStart(job)]
    assert len(study.cluster.arrays) == 1


# ---- a study that is killed and started again


def test_the_next_study_finds_waiting_running_and_ended_jobs(tmp_path: Path) -> None:
    killed = Study(tmp_path)
    names = ("waits", "runs", "ended", "failed", "gone", "removed")
    killed.submit(*map(killed.job, names))
    save_step(killed.job("ended"))
    cluster = killed.cluster
    cluster.set("RUNNING", 1)
    cluster.end("exit", 0, 2)
    cluster.end("exit", 3, 3)
    cluster.end("exit", 0, 5)
    for index in (2, 3, 4, 5):
        cluster.set(None, index)
    study = Study(tmp_path, cluster)
    jobs = {name: study.job(name) for name in (*names, "new")}
    study.submit(*jobs.values())
    assert study.poll() == [JobEnd(jobs["ended"], 0, 3.0)]
    tasks = SlurmBatch.read(cluster.arrays[1][0] / SlurmBatch.NAME).tasks
    assert [Path(task.folder).parent.name for task in tasks] == ["failed", "gone", "removed", "new"]
    assert study.poll(lambda: None) == [JobStart(jobs["runs"])]
    cluster.set(None, 1, 0)
    cluster.end("exit", 0, 0, 0)
    assert study.poll() == [JobStart(jobs["waits"]), JobEnd(jobs["waits"], 0, 3.0)]


def test_a_study_that_was_killed_before_its_submission_submits_again(tmp_path: Path) -> None:
    killed = Study(tmp_path)
    killed.submit(killed.job())
    (tmp_path / "slurm" / "00002").mkdir()  # killed before it wrote the batch's file
    study = Study(tmp_path)
    study.submit(study.job())
    assert [batch.name for batch, *_ in study.cluster.arrays] == ["00001"]


def test_a_result_of_other_inputs_does_not_count(tmp_path: Path) -> None:
    killed = Study(tmp_path)
    killed.submit(killed.job("a", lr=1), killed.job("b", lr=1))
    killed.cluster.end("exit", 0, 0)
    killed.cluster.set(None, 1)
    study = Study(tmp_path, killed.cluster)
    study.submit(study.job("a", lr=2), study.job("b", lr=2))
    assert study.cluster.arrays[-1][2] == 2
    study.cluster.set("RUNNING")
    other = Study(tmp_path, study.cluster)
    with refused(StoreError, "other_job_in_queue", job="7_0"):
        other.submit(other.job("a", lr=3))


def test_an_interrupted_study_leaves_its_jobs_and_names_the_way_to_cancel(study: Study) -> None:
    class Interrupt(Exception):
        pass

    def interrupt(_: float) -> None:
        raise Interrupt

    study.launcher._wait = interrupt
    with pytest.raises(Interrupt):
        run_jobs([study.job()], study.lines.append, lambda outcome, job: None, study.launcher)
    assert f"scancel --name={study.cluster.arrays[0][1]}" in study.lines[-1]


def test_the_table_names_why_a_job_was_given_up(study: Study) -> None:
    job = study.job()
    study.script = [lambda: study.cluster.set("CANCELLED")]
    outcome = run_jobs([job], study.lines.append, lambda outcome, job: None, study.launcher)
    assert outcome.status == {job: "cancelled"}
