"""What it costs that a run can be watched: its share of a run's CPU time.

What `medfl monitor` reads is noted while the run works: each batch is counted, each job has a thread that beats, each
event is a line of progress.jsonl. The share is too small for the difference of two runs, so the prices of a batch, a
job and a line are measured alone, and multiplied by how many of each a run has. Two runs of fedavg: the work of
`round_loop.py` (20 sites, two in a round, 5 epochs, batch 50, a four-layer CNN), and one with as little work between
two events as there can be: 20 sites, all in each round, a linear model on 13 numbers, one batch of 4.

    python benchmarks/watch.py
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from round_loop import CLASSES, make_sites, make_work
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


def cpu_of(action: Callable[[], object], times: int) -> float:
    """CPU seconds of one action, over many."""
    start = time.process_time()
    for _ in range(times):
        action()
    return (time.process_time() - start) / times


def prices(event: Event) -> dict[str, float]:
    """Return the CPU seconds of a counted batch, of a job's pulse and of a line for the event."""
    batches = range(1_000_000)

    def walk() -> None:
        for _ in count_batches(batches, "training", len(batches)):
            pass

    def pulse() -> None:
        with HeartbeatSender(lambda _: None):
            pass

    bare = cpu_of(walk, 1)
    with HeartbeatSender(lambda _: None):
        measured = cpu_of(walk, 1)
    with tempfile.TemporaryDirectory() as folder:
        file = ProgressFile(Path(folder))
        seconds = cpu_of(lambda: file.note(event), 2000)
        file.close()
    return {"batch": (measured - bare) / len(batches), "job": cpu_of(pulse, 2000), "event": seconds}


@contextmanager
def counting(counts: dict[str, int]) -> Iterator[None]:
    """Count the batches and jobs of the runs in the block."""
    leave = HeartbeatSender.__exit__

    def count(pulse: HeartbeatSender, *error: object) -> None:
        leave(pulse, *error)
        counts["job"] += 1
        counts["batch"] += pulse._count

    HeartbeatSender.__exit__ = count  # type: ignore[method-assign]
    try:
        yield
    finally:
        HeartbeatSender.__exit__ = leave  # type: ignore[method-assign]


def share(task: Task, sites: dict[str, Splits], settings: Settings) -> dict[str, float]:
    """Run fedavg here, with no worker beside, and say what share of its CPU time the notes are.

    Returns:
        Counts of batches, jobs and events, CPU seconds of the run, and the share, in [0, 1].
    """
    counts = {"batch": 0, "job": 0}
    with tempfile.TemporaryDirectory() as folder, counting(counts):
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
    cost = prices(longest.event)
    spent = sum(counts[name] * cost[name] for name in counts)
    return counts | {"CPU seconds": seconds, "share": spent / seconds}


def tiny_sites(names: list[str]) -> dict[str, Splits]:
    """Eight rows of 13 numbers a site, half of them to train on."""
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=(8, 13)).astype(np.float32), rng.integers(0, 2, 8)

    def rows(*index: int) -> ArrayDataset:
        chosen = np.array(index, dtype=np.int64)
        return ArrayDataset(values, labels[chosen], chosen)

    return {name: Splits(rows(0, 1, 2, 3), rows(), rows(4, 5, 6, 7)) for name in names}


def main() -> None:
    """Print both."""
    torch.set_num_threads(1)
    names = [f"site-{index + 1:04d}" for index in range(20)]
    images, _ = make_sites(make_work(20, 12_000, 100, None), names)

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
        figures = share(*case)
        print(f"{name}: {figures['share']:.3%} of {figures['CPU seconds']:.1f} CPU seconds")
        print(f"  {figures['batch']} batches, {figures['job']} jobs, {figures['event']} events")


if __name__ == "__main__":
    main()
