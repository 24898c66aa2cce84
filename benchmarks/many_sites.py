"""Many small sites: what it brings to train several at once (the setting ``together``), beside one after the other.

Each site has the same number of images and the same network: the four-layer CNN of McMahan et al. on 28 x 28 pixels, or
a network of one small convolution on 8 x 8. Whole runs of FedAvg alternate, with one site at a time and with several;
the first round of each warms up and is left out. Figures are of a round: its training, its messages, its state on disk
with fsync; nothing is scored but at the end. Where other work shares the machine, CPU seconds say more than seconds.

    python benchmarks/many_sites.py
    python benchmarks/many_sites.py --network small --images 40 --batch-size 5
    python benchmarks/many_sites.py --device cuda:0 --sites 500 --together 20 --repetitions 1
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from medfl.data.arrays import ArrayDataset
from medfl.engine.evaluation import Row
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.networks.cnn import CNN4
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl.testing.cohort import SmallNet
from medfl.training.loop import pick_device

CLASSES = 8
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn4": (lambda: CNN4(3, CLASSES), (28, 28, 3)),
    "small": (lambda: SmallNet(norm=False, outputs=CLASSES), (8, 8, 1)),
}
"""Network to what builds it, and the shape of an image, channels last."""


@dataclass(frozen=True)
class Size:
    """How much is trained.

    Attributes:
        network: In `NETWORKS`.
        sites: How many.
        images: Of each site.
        batch_size: In training.
        rounds: Of a run, >= 2.
    """

    network: str = "cnn4"
    sites: int = 20
    images: int = 64
    batch_size: int = 8
    rounds: int = 3


@dataclass
class Clock:
    """Seconds and CPU seconds at the end of each round."""

    device: str
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def note(self, round_: int, rows: list[Row]) -> None:
        """A round was committed."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())


def train(size: Size, together: int, device: str, folder: Path) -> tuple[Clock, dict[str, torch.Tensor]]:
    """One run; when its rounds ended, and the model in the end."""
    build, shape = NETWORKS[size.network]
    rng = np.random.default_rng(0)
    total = size.sites * size.images
    pixels = rng.integers(0, 256, (total, *shape), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, total)

    def dataset(rows: np.ndarray) -> ArrayDataset:
        return ArrayDataset(pixels, labels[rows], rows, (0.5,) * shape[-1], (0.5,) * shape[-1])

    sites = {}
    for index, rows in enumerate(np.array_split(np.arange(total), size.sites)):
        sites[f"site-{index + 1:03d}"] = Splits(dataset(rows), dataset(rows[:0]), dataset(rows[:1]))
    task = Task(
        {"network": build},
        "network",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        Multiclass(CLASSES),
        ("accuracy",),
        device=pick_device(device),
    )
    clock, registry = Clock(device), load_plugins()
    result = simulate(
        SimulatedRun(
            method=MethodChoice(name="fedavg", make=lambda: registry.make_method("fedavg", {})),
            task=task,
            settings=Settings(rounds=size.rounds, batch_size=size.batch_size, evaluate_every=size.rounds),
            data=RunData(sites=sites),
            folder=folder,
            execution=Execution(device=device, together=together),
            callbacks=Callbacks(on_round=clock.note),
        )
    )
    return clock, result.outcome.models["global"].tensors


def measure(size: Size, together: int, device: str, repetitions: int, alone: bool = True) -> dict[str, float]:
    """Figures of a round, and how far the models are apart.

    Args:
        size: How much is trained.
        together: Sites at once.
        device: Where.
        repetitions: Runs of each kind, in turns.
        alone: Whether to train one site at a time, too.
    """
    kinds = (1, together) if alone else (together,)
    wall: dict[int, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[int, list[float]] = {kind: [] for kind in kinds}
    models = {}
    if device.startswith("cuda"):
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(repetitions):
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                clock, models[kind] = train(size, kind, device, Path(folder) / "run")
            wall[kind] += np.diff(clock.wall[: size.rounds]).tolist()
            cpu[kind] += np.diff(clock.cpu[: size.rounds]).tolist()
    figures = {f"seconds of a round, {kind} at once": median(wall[kind]) for kind in kinds}
    figures |= {f"CPU seconds of a round, {kind} at once": median(cpu[kind]) for kind in kinds}
    if alone:
        figures["times as fast"] = median(wall[1]) / median(wall[together])
        figures["times less CPU"] = median(cpu[1]) / median(cpu[together])
        figures["largest difference of a weight"] = max(
            float((models[1][name] - tensor).abs().max()) for name, tensor in models[together].items()
        )
    if device.startswith("cuda"):
        figures["peak memory on the device, GB"] = torch.cuda.max_memory_allocated(device) / 1e9
    figures["peak memory of the process, GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return figures


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", choices=NETWORKS, default=Size.network)
    parser.add_argument("--sites", type=int, default=Size.sites)
    parser.add_argument("--together", type=int, help="sites at once; all of them where it is left out")
    parser.add_argument("--images", type=int, default=Size.images, help="of each site")
    parser.add_argument("--batch-size", type=int, default=Size.batch_size)
    parser.add_argument("--rounds", type=int, default=Size.rounds, help="of a run; the first one warms up")
    parser.add_argument("--repetitions", type=int, default=2, help="runs of each kind, in turns")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    size = Size(options.network, options.sites, options.images, options.batch_size, options.rounds)
    figures = measure(size, options.together or size.sites, options.device, options.repetitions)
    print(f"{size} on {options.device}, torch {torch.__version__}")
    for name, value in figures.items():
        print(f"{name:>45}: {value:.4g}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
