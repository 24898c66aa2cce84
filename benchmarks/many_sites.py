"""Measure the overhead of many tiny sites and many rounds: time per site and step, start-up, memory and files.

Each site has eight rows of a table with 13 columns, six for training and two for the test. The network is one linear
layer, so almost all of the time is medfl's own work: requests, messages, hashes, state on disk with fsync, rows of
metrics, evaluation. By default all sites take part in each round (`--fraction`). With `--images`, a row is an image of
28 pixels, and the network has two convolutions, two linear layers and 2.3 MB of weights. With `--plain`, a plain loop
(`plain_loop.py`) trains the same network on the same images after each round of medfl, in the same process.

    python benchmarks/many_sites.py --sites 100 10000
    python benchmarks/many_sites.py --sites 2 --rounds 1000
    python benchmarks/many_sites.py --images --plain --sites 20 --rounds 10
"""

from __future__ import annotations

import argparse
import json
import resource
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
from medfl.networks.convnet import ConvNet
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings
from medfl.task import Task

COLUMNS, ROWS, TRAIN = 13, 8, 6
"""Columns of the table, rows of each site, and training rows among them."""

BATCH = 8
"""Batch size of local training, more than the training rows of a site."""

IMAGES = 10_000
"""Number of different images. More sites use the same images again."""


@dataclass
class ResourceRecorder:
    """Callbacks of a run that record the resources of this process and its workers.

    Attributes:
        plain: Plain loop that runs one round after each round of medfl, or None.
        called_at: Time at which the recorder was created, before the run.
        started_at: Time at which the first round started.
        cpu_to_start: CPU seconds from the creation of the recorder to the first round.
        wall: Seconds of each round.
        cpu: CPU seconds of each round.
        plain_cpu: CPU seconds of each round of the plain loop.
        evaluation: CPU seconds of the evaluation after the last round.
        evaluated_at: Time at which this evaluation ended.
        cpu_at_evaluation: CPU seconds of the process and its workers at that time.
        memory: Proportional set size in bytes at the start of the first round, and after each round and evaluation.
    """

    plain: PlainLoop | None = None
    called_at: float = field(default_factory=time.perf_counter)
    started_at: float = 0.0
    cpu_to_start: float = 0.0
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    plain_cpu: list[float] = field(default_factory=list)
    evaluation: float = 0.0
    evaluated_at: float = 0.0
    cpu_at_evaluation: float = 0.0
    memory: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start_clocks()

    def note_start(self, site: str, step: int) -> bool:
        """Record the start of the first round: medfl calls this before each site executes a request."""
        if not self.started_at:
            self.started_at = time.perf_counter()
            self.cpu_to_start = self.cpu_seconds() - self._cpu_mark
            self._note_memory()
            self._start_clocks()
        return False

    def note_round(self, round_: int, rows: list[MetricRow]) -> None:
        """Record the resources after a committed round, or after the evaluation of the last round.

        medfl calls this once more with the number of the last round, after its evaluation.
        """
        if round_ == len(self.wall):
            self.evaluated_at, self.cpu_at_evaluation = time.perf_counter(), self.cpu_seconds()
            self.evaluation = self.cpu_at_evaluation - self._cpu_mark
            self._note_memory()
            return
        self.wall.append(time.perf_counter() - self._wall_mark)
        self.cpu.append(self.cpu_seconds() - self._cpu_mark)
        self._note_memory()
        if self.plain is not None:
            before = time.process_time()
            self.plain.round(list(range(len(self.plain.train))))
            self.plain_cpu.append(time.process_time() - before)
        self._start_clocks()

    def _start_clocks(self) -> None:
        self._wall_mark, self._cpu_mark = time.perf_counter(), self.cpu_seconds()

    def _note_memory(self) -> None:
        processes = [psutil.Process(), *psutil.Process().children()]
        self.memory.append(sum(process.memory_full_info().pss for process in processes))

    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far of this process and its workers."""
        return time.process_time() + sum(sum(worker.cpu_times()[:2]) for worker in psutil.Process().children())


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

    sites, none = {}, dataset(np.arange(0))
    for index in range(number):
        rows = np.arange(index * ROWS, (index + 1) * ROWS) % count
        sites[f"site-{index + 1:05d}"] = Splits(dataset(rows[:TRAIN]), none, dataset(rows[TRAIN:]))
    return sites


def make_plain_loop(sites: dict[str, Splits]) -> PlainLoop:
    """Return a plain loop that trains the network of `--images` on the training images of all sites."""
    batches = [splits.train.batch(torch.arange(TRAIN)) for splits in sites.values()]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    rows = list(torch.arange(len(images)).split(TRAIN))
    none = torch.empty(0, dtype=torch.int64)
    loop = PlainLoop(images, labels, rows, tests=[], server_test=none, epochs=1, batch_size=BATCH, seed=0)
    loop.model = make_cnn()
    return loop


def make_cnn() -> nn.Module:
    """Return the network of `--images`."""
    return ConvNet(3, 2, dense=180, padding=1)


def measure(number: int, options: argparse.Namespace) -> dict[str, float]:
    """Run the method once with the given number of sites and return the figures by name."""
    sites, registry = make_sites(number, options.images), load_plugins()
    task = Task(
        {"linear": lambda: nn.Linear(COLUMNS, 2), "cnn": make_cnn},
        "cnn" if options.images else "linear",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        Multiclass(2),
        ("accuracy",),
    )
    settings = Settings(
        rounds=options.rounds,
        epochs=1,
        batch_size=BATCH,
        fraction=options.fraction,
        evaluate_every=options.evaluate_every or options.rounds,
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        recorder, run = ResourceRecorder(make_plain_loop(sites) if options.plain else None), Path(folder) / "run"
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
        ended, cpu_ended = time.perf_counter(), recorder.cpu_seconds()
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        files = [path for path in run.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    wall, cpu = np.array(recorder.wall), np.array(recorder.cpu)
    steps = max(1, int(options.fraction * number))
    half = len(wall) // 2
    plain = {"ms of CPU in the plain loop": 1e3 * float(np.median(recorder.plain_cpu)) / steps} if options.plain else {}
    return plain | {
        "seconds from call to first round": recorder.started_at - recorder.called_at,
        "CPU seconds from call to first round": recorder.cpu_to_start,
        "ms of wall for a site's step": 1e3 * float(np.median(wall)) / steps,
        "ms of CPU for a site's step": 1e3 * float(np.median(cpu)) / steps,
        "CPU of a round, second half to first": float(cpu[half:].mean() / cpu[:half].mean()),
        "ms of CPU to evaluate a site after the last round": 1e3 * recorder.evaluation / number,
        "seconds after this evaluation": ended - recorder.evaluated_at,
        "CPU seconds after this evaluation": cpu_ended - recorder.cpu_at_evaluation,
        "memory at the first round, MiB (PSS of all processes)": recorder.memory[0] / 2**20,
        "memory after a round or the evaluation, MiB, at most": max(recorder.memory) / 2**20,
        "memory growth, second half of the rounds to first, MiB": (
            max(recorder.memory[half + 1 : -1]) - max(recorder.memory[1 : half + 1])
        )
        / 2**20,
        "highest memory of this process until the end, MiB (RSS)": highest,
        "files for a site": len(files) / number,
        "kB on disk for a site": size / number / 1e3,
    }


def main() -> None:
    """Run the measurements and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[100, 10000], help="numbers of sites, one run each")
    parser.add_argument("--images", action="store_true", help="sites with images and a CNN instead of a linear layer")
    parser.add_argument("--plain", action="store_true", help="with --images: run the plain loop after each round, too")
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
    if options.plain and (not options.images or options.fraction != 1):
        parser.error("--plain needs --images and all sites in each round")
    if options.rounds < 2:
        parser.error("--rounds needs at least 2, because the second half of the rounds is compared with the first")
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
