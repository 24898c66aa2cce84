"""Measure the overhead of many tiny sites and many rounds: time per site and step, start-up, memory and files.

Each site has eight rows of a table with 13 columns, six for training and two for the test. The network is one linear
layer, so almost all of the time is medfl's own work: requests, messages, hashes, state on disk with fsync, rows of
metrics, evaluation. By default all sites take part in each round (`--fraction`). With `--images`, a row is an image of
28 pixels, and the network has two convolutions, two linear layers and 2.3 MB of weights.

    python benchmarks/many_sites.py --sites 100 10000
    python benchmarks/many_sites.py --sites 2 --rounds 1000
    python benchmarks/many_sites.py --images --sites 20 --rounds 10
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
from torch import nn

from medfl.data.arrays import ArrayDataset
from medfl.engine.evaluation import MetricRow
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, Simulation, simulate
from medfl.engine.site import Splits
from medfl.networks.convnet import ConvNet
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings
from medfl.task import Task

COLUMNS, ROWS, TRAIN = 13, 8, 6
"""Columns of the table, rows of each site, and training rows among them."""

IMAGES = 10_000
"""Number of different images. More sites use the same images again."""


@dataclass
class ResourceRecorder:
    """Callbacks of a run that record the resources of this process and its workers after each round.

    Attributes:
        called_at: Time at which the recorder was created, before the run.
        started_at: Time at which the first round started.
        times: Times at the start of the first round and after each round.
        cpu: CPU seconds so far at the same times.
        memory: Proportional set size after each round in bytes.
    """

    called_at: float = field(default_factory=time.perf_counter)
    started_at: float = 0.0
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def note_start(self, site: str, step: int) -> bool:
        """Record the start of the first round: medfl calls this before each site executes a request."""
        if not self.started_at:
            self.started_at = time.perf_counter()
            self.times.append(self.started_at)
            self.cpu.append(self.cpu_seconds())
        return False

    def note_round(self, round_: int, rows: list[MetricRow]) -> None:
        """Record the resources after a committed round."""
        self.times.append(time.perf_counter())
        self.cpu.append(self.cpu_seconds())
        self.memory.append(sum(process.memory_full_info().pss for process in self.processes()))

    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far of this process and its workers."""
        return float(sum(sum(process.cpu_times()[:2]) for process in self.processes()))

    def processes(self) -> list[psutil.Process]:
        """Return this process and its workers."""
        return [psutil.Process(), *psutil.Process().children()]


def make_sites(number: int, has_images: bool) -> dict[str, Splits]:
    """Return the data of each site by its name: random numbers and classes, in one array that all sites share.

    Args:
        number: Number of sites.
        has_images: Whether rows are images instead of rows of a table.
    """
    rng = np.random.default_rng(0)
    count = min(number * ROWS, IMAGES) if has_images else number * ROWS
    table = rng.standard_normal((count, COLUMNS)).astype(np.float32)
    if has_images:
        table = rng.integers(0, 255, (count, 28, 28, 3), dtype=np.uint8)
    labels = rng.integers(0, 2, count)

    def dataset(rows: np.ndarray) -> ArrayDataset:
        return ArrayDataset(table, labels[rows], rows)

    sites = {}
    for index in range(number):
        rows = np.arange(index * ROWS, (index + 1) * ROWS) % count
        sites[f"site-{index + 1:05d}"] = Splits(dataset(rows[:TRAIN]), dataset(rows[:0]), dataset(rows[TRAIN:]))
    return sites


def measure(number: int, options: argparse.Namespace) -> dict[str, float]:
    """Run the method once with the given number of sites and return the figures by name."""
    sites, registry = make_sites(number, options.images), load_plugins()
    task = Task(
        {"linear": lambda: nn.Linear(COLUMNS, 2), "cnn": lambda: ConvNet(3, 2, dense=180, padding=1)},
        "cnn" if options.images else "linear",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        Multiclass(2),
        ("accuracy",),
    )
    settings = Settings(
        rounds=options.rounds,
        epochs=1,
        batch_size=8,
        fraction=options.fraction,
        evaluate_every=options.evaluate_every or options.rounds,
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        recorder, run = ResourceRecorder(), Path(folder) / "run"
        simulate(
            SimulatedRun(
                method=MethodChoice(name=options.method, make=lambda: registry.make_method(options.method, {})),
                task=task,
                settings=settings,
                data=RunData(sites=sites),
                folder=run,
                execution=Execution(workers=options.workers),
                simulation=Simulation(unavailable=recorder.note_start),
                callbacks=Callbacks(on_round=recorder.note_round),
            )
        )
        ended = time.perf_counter()
        files = [path for path in run.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    wall, cpu = np.diff(recorder.times), np.diff(recorder.cpu)
    steps = max(1, int(options.fraction * number))
    half = len(wall) // 2
    return {
        "seconds from call to first round": recorder.started_at - recorder.called_at,
        "ms of wall for a site's step": 1e3 * float(np.median(wall)) / steps,
        "ms of CPU for a site's step": 1e3 * float(np.median(cpu)) / steps,
        "CPU of a round, second half to first": float(cpu[half:].mean() / cpu[:half].mean()),
        "seconds after the last round": ended - recorder.times[-1],
        "peak memory, MiB (PSS of all processes)": max(recorder.memory) / 2**20,
        "memory growth, second half to first, MiB": (max(recorder.memory[half:]) - max(recorder.memory[:half])) / 2**20,
        "files for a site": len(files) / number,
        "kB on disk for a site": size / number / 1e3,
    }


def main() -> None:
    """Run the measurements and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[100, 10000], help="numbers of sites, one run each")
    parser.add_argument("--images", action="store_true", help="sites with images and a CNN instead of a linear layer")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each run")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the sites in each round")
    parser.add_argument(
        "--evaluate-every",
        type=int,
        help="rounds from one evaluation to the next; default: evaluate after the last round",
    )
    parser.add_argument("--method", default="fedavg", help="name of the method")
    parser.add_argument("--workers", type=int, default=1, help="number of worker processes")
    parser.add_argument("--folder", type=Path, help="parent of the run folder; default: the system's temporary folder")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {number: measure(number, options) for number in options.sites}
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    names = list(next(iter(results.values())))
    width = max(map(len, names))
    print(f"{'sites':<{width}}" + "".join(f"{number:>12}" for number in results))
    for name in names:
        print(f"{name:<{width}}" + "".join(f"{figures[name]:>12.3f}" for figures in results.values()))


if __name__ == "__main__":
    main()
