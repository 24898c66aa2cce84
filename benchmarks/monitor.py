"""Measure the cost of monitoring as a share of a run's CPU time.

A run records its progress for `medfl monitor`: it counts each batch, starts a heartbeat thread for each job, and writes
each event as a line of `progress.jsonl`. This cost is too small to measure as the difference of two runs. The benchmark
therefore measures the CPU time of one batch, one job and one line separately and multiplies each by its number in a
run. It does so for two runs of fedavg. The first has the workload of `round_loop.py` (20 sites, two per round, 5
epochs, batch 50, a four-layer CNN). The second has the minimum work between two events: 20 sites, all in each round, a
linear model on 13 numbers, one batch of 4.

    python benchmarks/monitor.py
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from round_loop import CLASSES, make_sites, make_workload
from torch import nn

from medfl.data.arrays import ArrayDataset
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.progress import PROGRESS, ProgressFile
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.networks.cnn import CNN4
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.records.progress import Event, ProgressLine
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.utils.heartbeat import HeartbeatSender, count_batches

ROUNDS = 4


def cpu_seconds(action: Callable[[], object], times: int) -> float:
    """Run an action several times and return its mean CPU seconds."""
    start = time.process_time()
    for _ in range(times):
        action()
    return (time.process_time() - start) / times


def unit_costs(event: Event) -> dict[str, float]:
    """Return the CPU seconds of counting a batch, of a job's heartbeat thread, and of writing the event as a line.

    Returns:
        The keys are ``batch``, ``job`` and ``event``.
    """
    batches = range(1_000_000)

    def iterate() -> None:
        for _ in count_batches(batches, "training", len(batches)):
            pass

    def send_heartbeats() -> None:
        with HeartbeatSender(lambda _: None):
            pass

    plain = cpu_seconds(iterate, 1)
    with HeartbeatSender(lambda _: None):
        counted = cpu_seconds(iterate, 1)
    with tempfile.TemporaryDirectory() as folder:
        file = ProgressFile(Path(folder))
        seconds = cpu_seconds(lambda: file.note(event), 2000)
        file.close()
    return {"batch": (counted - plain) / len(batches), "job": cpu_seconds(send_heartbeats, 2000), "event": seconds}


@contextmanager
def count_batches_and_jobs(counts: dict[str, int]) -> Iterator[None]:
    """Count the batches and jobs of the runs in the block, in place in `counts`."""
    original_exit = HeartbeatSender.__exit__

    def count(sender: HeartbeatSender, *error: object) -> None:
        original_exit(sender, *error)
        counts["job"] += 1
        counts["batch"] += sender._count

    HeartbeatSender.__exit__ = count  # type: ignore[method-assign]
    try:
        yield
    finally:
        HeartbeatSender.__exit__ = original_exit  # type: ignore[method-assign]


def monitoring_share(task: Task, sites: dict[str, Splits], settings: Settings) -> dict[str, float]:
    """Run fedavg in this process, without worker processes, and return the share of monitoring in its CPU time.

    Returns:
        The numbers of batches, jobs and events (``batch``, ``job``, ``event``), the CPU seconds of the run (``CPU
        seconds``) and the share of monitoring in [0, 1] (``share``).
    """
    counts = {"batch": 0, "job": 0}
    with tempfile.TemporaryDirectory() as folder, count_batches_and_jobs(counts):
        run = SimulatedRun(
            method=MethodChoice(name="fedavg", make=lambda: load_plugins().make_method("fedavg", {})),
            task=task,
            settings=settings,
            data=RunData(sites=sites),
            folder=Path(folder) / "run",
            execution=Execution(workers=1),
        )
        start = time.process_time()
        simulate(run)
        seconds = time.process_time() - start
        lines = (Path(folder) / "run" / PROGRESS).read_bytes().splitlines()
    counts["event"] = len(lines)
    longest = ProgressLine.from_bytes(max(lines, key=len))
    assert longest is not None
    cost = unit_costs(longest.event)
    spent = sum(counts[name] * cost[name] for name in counts)
    return counts | {"CPU seconds": seconds, "share": spent / seconds}


def tiny_sites(names: list[str]) -> dict[str, Splits]:
    """Return eight rows of 13 numbers for each site: four for training and four for the test."""
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=(8, 13)).astype(np.float32), rng.integers(0, 2, 8)

    def rows(*index: int) -> ArrayDataset:
        chosen = np.array(index, dtype=np.int64)
        return ArrayDataset(values, labels[chosen], chosen)

    return {name: Splits(rows(0, 1, 2, 3), rows(), rows(4, 5, 6, 7)) for name in names}


def main() -> None:
    """Measure both runs and print the shares."""
    torch.set_num_threads(1)
    names = [f"site-{index + 1:04d}" for index in range(20)]
    images, _ = make_sites(make_workload(20, 12_000, 100, None), names)

    def task(name: str, network: Callable[[], nn.Module], classes: int) -> Task:
        def sgd(parameters: object) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr=0.01)  # type: ignore[arg-type]

        return Task({name: network}, name, nn.CrossEntropyLoss(), sgd, Multiclass(classes), ("accuracy",))

    cases = {
        "four-layer CNN": (
            task("cnn4", lambda: CNN4(3, CLASSES), CLASSES),
            images,
            Settings(rounds=ROUNDS, epochs=5, batch_size=50, fraction=0.1),
        ),
        "linear, one batch of 4": (
            task("linear", lambda: nn.Linear(13, 2), 2),
            tiny_sites(names),
            Settings(rounds=ROUNDS * 10, epochs=1, batch_size=4),
        ),
    }
    for name, case in cases.items():
        figures = monitoring_share(*case)
        print(f"{name}: monitoring takes {figures['share']:.3%} of {figures['CPU seconds']:.1f} CPU seconds")
        print(f"  {figures['batch']} batches, {figures['job']} jobs, {figures['event']} events")


if __name__ == "__main__":
    main()
