"""What many tiny sites and many rounds cost: the time of a site's step, the start, the memory, the files.

Each site holds eight rows of a table with 13 columns, six to train on and two for its test; the network is one linear
layer, so next to nothing is computed and what is left is medfl's own: orders, messages, hashes, state on disk with
fsync, rows of metrics, scores. All sites take part in each round unless --fraction says otherwise.

    python benchmarks/scale.py --sites 100 10000
    python benchmarks/scale.py --sites 2 --rounds 1000
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
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings
from medfl.task import Task

COLUMNS, ROWS, TRAIN = 13, 8, 6


@dataclass
class Meter:
    """What this process and its workers have used at the end of each round."""

    begun: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    ends: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def note_start(self, site: str, step: int) -> bool:
        """Record the start of the first round: medfl calls this before each site executes a request."""
        if not self.started:
            self.started = time.perf_counter()
            self.ends.append(self.started)
            self.cpu.append(self.cpu_seconds())
        return False

    def note_round(self, round_: int, rows: list[MetricRow]) -> None:
        """Record the resources after a committed round."""
        self.ends.append(time.perf_counter())
        self.cpu.append(self.cpu_seconds())
        self.memory.append(sum(process.memory_full_info().pss for process in self.everyone()))

    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far."""
        return float(sum(sum(process.cpu_times()[:2]) for process in self.everyone()))

    def everyone(self) -> list[psutil.Process]:
        """Return this process and its workers."""
        return [psutil.Process(), *psutil.Process().children()]


def make_sites(number: int) -> dict[str, Splits]:
    """Rows of random numbers with a class each, in one array that all sites share."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((number * ROWS, COLUMNS)).astype(np.float32)
    labels = rng.integers(0, 2, number * ROWS)

    def dataset(rows: np.ndarray) -> ArrayDataset:
        return ArrayDataset(table, labels[rows], rows)

    sites = {}
    for index in range(number):
        rows = np.arange(index * ROWS, (index + 1) * ROWS)
        sites[f"site-{index + 1:05d}"] = Splits(dataset(rows[:TRAIN]), dataset(rows[:0]), dataset(rows[TRAIN:]))
    return sites


def measure(number: int, options: argparse.Namespace) -> dict[str, float]:
    """One run with so many sites."""
    sites, registry = make_sites(number), load_plugins()
    task = Task(
        {"linear": lambda: nn.Linear(COLUMNS, 2)},
        "linear",
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
        meter, run = Meter(), Path(folder) / "run"
        simulate(
            SimulatedRun(
                method=MethodChoice(name=options.method, make=lambda: registry.make_method(options.method, {})),
                task=task,
                settings=settings,
                data=RunData(sites=sites),
                folder=run,
                execution=Execution(workers=options.workers),
                simulation=Simulation(unavailable=meter.note_start),
                callbacks=Callbacks(on_round=meter.note_round),
            )
        )
        ended = time.perf_counter()
        files = [path for path in run.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    wall, cpu = np.diff(meter.ends), np.diff(meter.cpu)
    steps = max(1, int(options.fraction * number))
    half = len(wall) // 2
    return {
        "seconds from call to first round": meter.started - meter.begun,
        "ms of wall for a site's step": 1e3 * float(np.median(wall)) / steps,
        "ms of CPU for a site's step": 1e3 * float(np.median(cpu)) / steps,
        "CPU of a round, second half to first": float(cpu[half:].mean() / cpu[:half].mean()),
        "seconds after the last round": ended - meter.ends[-1],
        "peak memory, MiB (PSS of all processes)": max(meter.memory) / 2**20,
        "memory growth, second half to first, MiB": (max(meter.memory[half:]) - max(meter.memory[:half])) / 2**20,
        "files for a site": len(files) / number,
        "kB on disk for a site": size / number / 1e3,
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[100, 10000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--evaluate-every", type=int, help="rounds between two scores; after the last one otherwise")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the run folder goes; a temporary folder otherwise")
    parser.add_argument("--json", type=Path, help="write the figures here too")
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
