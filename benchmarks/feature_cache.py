"""Compare rounds of a frozen EfficientNet-lite0 with and without cached features, interleaved, and count bytes.

One site of 100 random images trains the head of a frozen EfficientNet-lite0 at 224 pixels, one epoch a round. Pairs of
runs alternate: one computes the images in each round, the other one reads features that an earlier run stored. Only the
rounds are counted, not the start of a run. The benchmark also measures the CPU time of computing the features once, and
the bytes of a reply by trained part, and with --others the CPU time of a round if adapters or all parameters learn.

    python benchmarks/feature_cache.py
    python benchmarks/feature_cache.py --size 96 --images 400 --pairs 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medfl.data.pooled import TensorData
from medfl.engine.evaluation import MetricRow
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings
from medfl.task import Task
from medfl_encoders.efficientnet_lite import EfficientNetLite0

TRAINED_PARTS: dict[str, dict[str, Any]] = {
    "head": {"train_part": "head"},
    "lora": {"train_part": "lora"},
    "lora, last four blocks": {"train_part": "lora", "lora": {"targets": r"blocks\.1[2-5]|final"}},
    "all": {"train_part": "all"},
}
"""Maps a trained part of the network to its settings. `head` is the first one."""

PLAIN_ROUNDS = 3
"""Number of rounds of a run without cached features.

The first round includes the set-up, and the callback is called once more after the last evaluation. The median of the
times is therefore that of a round between them.
"""


@dataclass
class RoundTimer:
    """Measures the CPU time of a run's rounds in this process, without the run's start.

    Attributes:
        called_at: CPU seconds of the process at the call of the run.
        started_at: CPU seconds of the process when the run started its first round.
        rounds: CPU seconds of each round.
    """

    called_at: float = field(default_factory=time.process_time)
    started_at: float = 0.0
    rounds: list[float] = field(default_factory=list)

    def on_start(self) -> None:
        """Record the start of the first round."""
        self.started_at = time.process_time()

    def on_round(self, round_: int, rows: list[MetricRow]) -> None:
        """Append the time since the start, or since the round before."""
        self.rounds.append(time.process_time() - self.started_at - sum(self.rounds))


def make_task(size: int) -> Task:
    """Return a task of two classes with an EfficientNet-lite0 of random weights, which cost the same time as others."""
    return Task(
        {"efficientnet_lite0": partial(EfficientNetLite0, in_channels=1, num_classes=2, size=size)},
        "efficientnet_lite0",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.001),
        Multiclass(2),
        ("accuracy",),
    )


def make_site(images: int, size: int) -> dict[str, Splits]:
    """Return one site with random training images (images, 1, size, size), and without other splits."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(images, 1, size, size, generator=generator)
    train = TensorData(pixels, torch.arange(images) % 2)
    none = TensorData(pixels[:0], torch.arange(0))
    return {"site-1": Splits(train, none, none)}


def run_rounds(
    sites: dict[str, Splits], size: int, settings: Settings, feature_cache: bool, cache: Path
) -> tuple[RoundTimer, float]:
    """Run fedavg in this process; return the times of its rounds and the bytes that the site sent in a round.

    Args:
        sites: Data of the site.
        size: Edge in pixels to which the network resizes images.
        settings: Settings of the run.
        feature_cache: Whether features of a frozen body are stored and read.
        cache: Folder of the stored features.
    """
    registry, timer = load_plugins(), RoundTimer()
    with tempfile.TemporaryDirectory() as folder:
        result = simulate(
            SimulatedRun(
                method=MethodChoice(name="fedavg", make=lambda: registry.make_method("fedavg", {})),
                task=make_task(size).with_training_of(settings.train_part, settings.lora),
                settings=settings,
                data=RunData(sites=sites),
                folder=Path(folder) / "run",
                execution=Execution(workers=1, feature_cache=feature_cache, cache_dir=cache),
                callbacks=Callbacks(on_start=timer.on_start, on_round=timer.on_round),
            )
        )
    return timer, result.summary.costs["site-1"].bytes_up / settings.rounds


def measure_rounds(options: argparse.Namespace, cache: Path) -> dict[str, float]:
    """Run the interleaved pairs and return the figures by name."""
    sites = make_site(options.images, options.size)

    def run(feature_cache: bool, rounds: int) -> RoundTimer:
        settings = Settings(rounds=rounds, batch_size=16, train_part="head")
        return run_rounds(sites, options.size, settings, feature_cache, cache)[0]

    first = run(True, 1)
    ratios, plain, cached = [], [], []
    for _ in range(options.pairs):
        plain.append(statistics.median(run(False, PLAIN_ROUNDS).rounds))
        cached.append(statistics.median(run(True, options.rounds).rounds))
        ratios.append(plain[-1] / cached[-1])
    return {
        "CPU seconds of a round without the cache": statistics.median(plain),
        "CPU seconds of a round with the cache": statistics.median(cached),
        "CPU seconds of the start that computes the features": first.started_at - first.called_at,
        "ratio of a round (without / with), median": statistics.median(ratios),
        "ratio of a round (without / with), smallest": min(ratios),
        "ratio of a round (without / with), largest": max(ratios),
    }


def measure_other_parts(options: argparse.Namespace, cache: Path) -> dict[str, float]:
    """Return the CPU seconds of a round in which adapters or all parameters learn."""
    sites = make_site(options.images, options.size)
    seconds = {
        name: run_rounds(sites, options.size, Settings(rounds=PLAIN_ROUNDS, batch_size=16, **part), False, cache)[0]
        for name, part in TRAINED_PARTS.items()
        if name != "head"
    }
    return {f"CPU seconds of a round, {name}": statistics.median(timer.rounds) for name, timer in seconds.items()}


def count_bytes(cache: Path) -> dict[str, float]:
    """Return the bytes of a site's reply for each trained part, and their ratios to those of the head."""
    sites, size = make_site(4, 32), 32
    sent = {
        name: run_rounds(sites, size, Settings(rounds=1, batch_size=4, **part), False, cache)[1]
        for name, part in TRAINED_PARTS.items()
    }
    ratios = {f"bytes, {name} / head": count / sent["head"] for name, count in sent.items()}
    return {f"bytes of a reply, {name}": count for name, count in sent.items()} | ratios


def main() -> None:
    """Run the measurements and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100, help="number of images of the site")
    parser.add_argument("--size", type=int, default=224, help="edge of the images in pixels")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds of each run with the cache")
    parser.add_argument("--pairs", type=int, default=3, help="number of interleaved pairs of runs")
    parser.add_argument("--others", action="store_true", help="also measure training of adapters and all parameters")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        figures = measure_rounds(options, Path(cache))
        if options.others:
            figures |= measure_other_parts(options, Path(cache))
        figures |= count_bytes(Path(cache))
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:14.4f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
