"""Compare the time of medfl's fedavg with the plain loop of `plain_loop.py`, interleaved on the same workload.

After each round of medfl, the plain loop runs one round in this process with the same participants. So the load of the
machine affects both equally. The workload: 20 sites of a 28-pixel RGB data set of BloodMNIST's size, 10 %
participation, 5 local epochs, batch 50, SGD, and in each round an evaluation on the global test set and the sites' test
sets. medfl's figures include messages, state on disk with fsync, metrics and evaluation.

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
class Workload:
    """Images and their split over the sites.

    Attributes:
        images: Images of all sites and of the global test set, shape (N, 28, 28, 3), uint8.
        labels: Labels of the images, shape (N,).
        train: Indices of the training images of each site.
        tests: Indices of the test images of each site.
        server_test: Indices of the images of the global test set.
    """

    images: np.ndarray
    labels: np.ndarray
    train: list[np.ndarray]
    tests: list[np.ndarray]
    server_test: np.ndarray


def make_workload(sites: int, images: int, test: int, data: Path | None) -> Workload:
    """Split images over the sites at random; a fifth of each site's images form its test set.

    Args:
        sites: Number of sites.
        images: Number of images of all sites together. Ignored if `data` is given.
        test: Number of images in the global test set. Ignored if `data` is given.
        data: File ``bloodmnist.npz``; None generates random images.
    """
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
    return Workload(pixels, labels.astype(np.int64), train, tests, np.arange(images, images + test))


@dataclass
class RoundTimer:
    """Measures medfl's rounds, without the rounds of the plain loop between them.

    Attributes:
        process: This process.
        wall: Wall seconds of each round.
        cpu: CPU seconds of each round, including the worker processes.
    """

    process: psutil.Process = field(default_factory=psutil.Process)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start the measurement of a round."""
        self.wall_mark, self.cpu_mark = time.perf_counter(), self.cpu_seconds()

    def stop(self) -> None:
        """End the measurement of a round and append its times to `wall` and `cpu`."""
        self.wall.append(time.perf_counter() - self.wall_mark)
        self.cpu.append(self.cpu_seconds() - self.cpu_mark)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far of this process and its workers."""
        processes = [self.process, *self.process.children()]
        return sum(sum(p.cpu_times()[:2]) for p in processes)

    def memory(self) -> int:
        """Return the proportional set size of this process and its workers in bytes; shared pages count once."""
        processes = [self.process, *self.process.children()]
        return sum(p.memory_full_info().pss for p in processes)


class InterleavedRounds:
    """Callbacks of a medfl run that run a round of the plain loop after each round of medfl and measure both.

    Args:
        work: Images and their split over the sites.
        options: Options of the command line.
    """

    def __init__(self, work: Workload, options: argparse.Namespace) -> None:
        self.options = options
        self.names = [f"site-{index + 1:04d}" for index in range(options.sites)]
        self.plain = None if options.alone else _plain(work, options)
        self.timer = RoundTimer()
        self.plain_wall: list[float] = []
        self.plain_cpu: list[float] = []
        self.memory: list[int] = []
        self.called_at = time.perf_counter()
        self.seconds_to_start = 0.0

    def unavailable(self, site: str, step: int) -> bool:
        """Record the start of the first round: medfl calls this before each site executes a request."""
        if not self.seconds_to_start:
            self.seconds_to_start = time.perf_counter() - self.called_at
            self.timer.start()
        return False

    def on_round(self, round_: int, rows: list[MetricRow]) -> None:
        """Run one round of the plain loop with the same participants after each committed round of medfl."""
        self.timer.stop()
        self.memory.append(self.timer.memory())
        if self.plain is not None and len(self.plain_wall) < self.options.rounds:
            chosen = sample_sites(self.names, self.options.fraction, make_generator(0, "participation", round_))
            wall, cpu = time.perf_counter(), time.process_time()
            self.plain.round([self.names.index(name) for name in chosen])
            self.plain_wall.append(time.perf_counter() - wall)
            self.plain_cpu.append(time.process_time() - cpu)
        self.timer.start()

    def figures(self) -> dict[str, float]:
        """Return the figures of both loops by name, times as means per round."""
        rounds = self.options.rounds
        wall, cpu = sum(self.timer.wall), sum(self.timer.cpu)
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


def make_sites(work: Workload, names: list[str]) -> tuple[dict[str, Splits], ArrayDataset]:
    """Return the data of each site by its name, and the global test set. All share one array of images."""

    def dataset(rows: np.ndarray) -> ArrayDataset:
        return ArrayDataset(work.images, work.labels[rows], rows, (0.5,) * 3, (0.5,) * 3)

    empty = dataset(np.empty(0, dtype=np.int64))
    parts = zip(names, work.train, work.tests, strict=True)
    return {name: Splits(dataset(train), empty, dataset(test)) for name, train, test in parts}, dataset(
        work.server_test
    )


def compare(options: argparse.Namespace) -> dict[str, float]:
    """Run both loops interleaved and return their figures by name."""
    torch.set_num_threads(1)
    work = make_workload(options.sites, options.images, options.test, options.data)
    both = InterleavedRounds(work, options)
    sites, server_test = make_sites(work, both.names)
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
        both.called_at = time.perf_counter()
        simulate(
            SimulatedRun(
                method=MethodChoice(name="fedavg", make=lambda: registry.make_method("fedavg", {})),
                task=task,
                settings=settings,
                data=RunData(sites=sites, server_test=server_test),
                folder=Path(folder) / "run",
                execution=Execution(workers=options.workers),
                simulation=Simulation(unavailable=both.unavailable),
                callbacks=Callbacks(on_round=both.on_round),
            )
        )
    return both.figures()


def _plain(work: Workload, options: argparse.Namespace) -> PlainLoop:
    images = torch.from_numpy(work.images).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.5).contiguous()
    rows = [torch.from_numpy(part) for part in work.train]
    tests = [torch.from_numpy(part) for part in work.tests]
    return PlainLoop(
        images, torch.from_numpy(work.labels), rows, tests, torch.from_numpy(work.server_test), 5, 50, seed=0
    )


def main() -> None:
    """Run the comparison and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="number of rounds")
    parser.add_argument("--sites", type=int, default=20, help="number of sites")
    parser.add_argument("--fraction", type=float, default=0.1, help="share of the sites in each round")
    parser.add_argument("--images", type=int, default=11959, help="number of images of all sites together")
    parser.add_argument("--test", type=int, default=3421, help="number of images in the global test set")
    parser.add_argument("--workers", type=int, default=2, help="number of worker processes of medfl")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="precision of medfl")
    parser.add_argument("--data", type=Path, help="file bloodmnist.npz; default: random images")
    parser.add_argument("--folder", type=Path, help="parent of the run folder; default: the system's temporary folder")
    parser.add_argument("--alone", action="store_true", help="run medfl without the plain loop, to measure its memory")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    figures = compare(options)
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:8.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
