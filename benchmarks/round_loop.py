"""Time medfl's fedavg against the plain loop of `plain_loop.py`, on the same work, interleaved in one run.

After each round of medfl one round of the plain loop runs in this process with the same participants, so both meet the
same machine. The work: 20 sites of a 28-pixel RGB data set of BloodMNIST's size, 10 % participation, 5 local epochs,
batch 50, SGD, evaluation on the global test set and the sites' test sets each round. medfl's numbers hold
everything: messages, state on disk with fsync, metrics, evaluation.

    python benchmarks/round_loop.py --workers 2
    python benchmarks/round_loop.py --workers 2 --precision bf16
    python benchmarks/round_loop.py --sites 1000 --images 12000 --rounds 10
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch
from plain_loop import PlainLoop
from torch import nn

from medfl.data.arrays import ArrayDataset
from medfl.engine.evaluation import MetricRow
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, Simulation, simulate
from medfl.engine.site import Splits
from medfl.networks.cnn import CNN4
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.toolkit.aggregation import sample_sites
from medfl.utils.rng import make_generator

CLASSES = 8


@dataclass
class Work:
    """The images and who holds which rows."""

    images: np.ndarray
    labels: np.ndarray
    train: list[np.ndarray]
    tests: list[np.ndarray]
    global_test: np.ndarray


def make_work(sites: int, images: int, test: int, data: Path | None) -> Work:
    """Rows dealt at random, a fifth of each site's for its test; real BloodMNIST if its npz is given."""
    rng = np.random.default_rng(0)
    if data is not None:
        with np.load(data) as file:
            pixels = np.concatenate([file["train_images"], file["test_images"]])
            labels = np.concatenate([file["train_labels"], file["test_labels"]]).reshape(-1)
            images, test = len(file["train_images"]), len(file["test_images"])
    else:
        pixels = rng.integers(0, 256, (images + test, 28, 28, 3), dtype=np.uint8)
        labels = rng.integers(0, CLASSES, images + test)
    parts = np.array_split(rng.permutation(images), sites)
    cut = [len(part) // 5 for part in parts]
    tests = [part[:n] for part, n in zip(parts, cut, strict=True)]
    train = [part[n:] for part, n in zip(parts, cut, strict=True)]
    return Work(pixels, labels.astype(np.int64), train, tests, np.arange(images, images + test))


@dataclass
class Meter:
    """CPU and wall seconds of medfl's rounds, without the plain rounds between them."""

    process: psutil.Process = field(default_factory=psutil.Process)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0

    def start(self) -> None:
        """Begin a round."""
        self.wall_mark, self.cpu_mark = time.perf_counter(), self.cpu_seconds()

    def stop(self) -> None:
        """End a round."""
        self.wall.append(time.perf_counter() - self.wall_mark)
        self.cpu.append(self.cpu_seconds() - self.cpu_mark)

    def cpu_seconds(self) -> float:
        """CPU seconds so far of this process and its workers."""
        everyone = [self.process, *self.process.children()]
        return sum(sum(p.cpu_times()[:2]) for p in everyone)

    def memory(self) -> int:
        """Proportional set size of this process and its workers: shared pages count once."""
        everyone = [self.process, *self.process.children()]
        return sum(p.memory_full_info().pss for p in everyone)


class Interleaved:
    """Runs a round of the plain loop after each round of medfl, and keeps the figures of both.

    Args:
        work: The images and who holds which rows.
        options: Of the command line.
    """

    def __init__(self, work: Work, options: argparse.Namespace) -> None:
        self.options = options
        self.names = [f"site-{index + 1:04d}" for index in range(options.sites)]
        self.plain = None if options.alone else _plain(work, options)
        self.meter = Meter()
        self.plain_wall: list[float] = []
        self.plain_cpu: list[float] = []
        self.memory: list[int] = []
        self.begun = time.perf_counter()
        self.seconds_to_start = 0.0

    def unavailable(self, site: str, step: int) -> bool:
        """Record the start of the first round: medfl calls this before each site executes a request."""
        if not self.seconds_to_start:
            self.seconds_to_start = time.perf_counter() - self.begun
            self.meter.start()
        return False

    def on_round(self, round_: int, rows: list[MetricRow]) -> None:
        """Run one round of the plain loop with the same participants after each committed round of medfl."""
        self.meter.stop()
        self.memory.append(self.meter.memory())
        if self.plain is not None and len(self.plain_wall) < self.options.rounds:
            chosen = sample_sites(self.names, self.options.fraction, make_generator(0, "participation", round_))
            wall, cpu = time.perf_counter(), time.process_time()
            self.plain.round([self.names.index(name) for name in chosen])
            self.plain_wall.append(time.perf_counter() - wall)
            self.plain_cpu.append(time.process_time() - cpu)
        self.meter.start()

    def figures(self) -> dict[str, float]:
        """Everything that was measured, per round."""
        rounds = self.options.rounds
        wall, cpu = sum(self.meter.wall), sum(self.meter.cpu)
        steps = max(1, int(self.options.fraction * self.options.sites)) * rounds
        figures = {
            "medfl: wall seconds per round": wall / rounds,
            "medfl: CPU seconds per round": cpu / rounds,
            "medfl: client-steps per second": steps / wall,
            "medfl: seconds from call to first round": self.seconds_to_start,
            "medfl: peak memory, GiB (PSS of all processes)": max(self.memory) / 2**30,
            "medfl: memory growth, second half to first half, MiB": _growth(self.memory) / 2**20,
        }
        if self.plain is None:
            return figures
        return figures | {
            "plain: wall seconds per round": sum(self.plain_wall) / rounds,
            "plain: CPU seconds per round, training": self.plain.seconds["train"] / rounds,
            "plain: CPU seconds per round, evaluation": self.plain.seconds["evaluate"] / rounds,
            "ratio of CPU (medfl / plain)": cpu / sum(self.plain_cpu),
            "ratio of wall (medfl / plain)": wall / sum(self.plain_wall),
        }


def _growth(sizes: list[int]) -> float:
    half = max(1, len(sizes) // 2)
    return max(sizes[half:]) - max(sizes[:half]) if len(sizes) > 1 else 0.0


def make_sites(work: Work, names: list[str]) -> tuple[dict[str, Splits], ArrayDataset]:
    """Return the sites' data and the global test set, over one shared array."""

    def dataset(rows: np.ndarray) -> ArrayDataset:
        return ArrayDataset(work.images, work.labels[rows], rows, (0.5,) * 3, (0.5,) * 3)

    empty = dataset(np.empty(0, dtype=np.int64))
    parts = zip(names, work.train, work.tests, strict=True)
    return {name: Splits(dataset(train), empty, dataset(test)) for name, train, test in parts}, dataset(
        work.global_test
    )


def compare(options: argparse.Namespace) -> dict[str, float]:
    """Run both, interleaved; returns the ratios and figures."""
    torch.set_num_threads(1)
    work = make_work(options.sites, options.images, options.test, options.data)
    both = Interleaved(work, options)
    sites, global_test = make_sites(work, both.names)
    registry = load_plugins()
    task = Task(
        {"cnn4": lambda: CNN4(3, CLASSES)},
        "cnn4",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        Multiclass(CLASSES),
        ("accuracy",),
    )
    settings = Settings(
        rounds=options.rounds, epochs=5, batch_size=50, fraction=options.fraction, precision=options.precision
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        both.begun = time.perf_counter()
        simulate(
            SimulatedRun(
                method=MethodChoice(name="fedavg", make=lambda: registry.make_method("fedavg", {})),
                task=task,
                settings=settings,
                data=RunData(sites=sites, global_test=global_test),
                folder=Path(folder) / "run",
                execution=Execution(workers=options.workers),
                simulation=Simulation(unavailable=both.unavailable),
                callbacks=Callbacks(on_round=both.on_round),
            )
        )
    return both.figures()


def _plain(work: Work, options: argparse.Namespace) -> PlainLoop:
    images = torch.from_numpy(work.images).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.5).contiguous()
    rows = [torch.from_numpy(part) for part in work.train]
    tests = [torch.from_numpy(part) for part in work.tests]
    return PlainLoop(
        images, torch.from_numpy(work.labels), rows, tests, torch.from_numpy(work.global_test), 5, 50, seed=0
    )


def main() -> None:
    """Read the options, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--fraction", type=float, default=0.1)
    parser.add_argument("--images", type=int, default=11959)
    parser.add_argument("--test", type=int, default=3421)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--data", type=Path, help="bloodmnist.npz; random images otherwise")
    parser.add_argument("--folder", type=Path, help="where the run folder goes; a temporary folder otherwise")
    parser.add_argument("--alone", action="store_true", help="medfl without the plain loop, for its memory")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures = compare(options)
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:8.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
