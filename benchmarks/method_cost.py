"""What methods cost at a site beside fedavg, in ratios from interleaved runs.

Each repetition runs one round of every method on the same sites, one after the other in a new order, so all meet the
same machine. The work: sites of a 28-pixel RGB data set, 5 local epochs, batch 50, the four-layer CNN, one thread. Only
the sites' work counts: training, and what a method does before and after it, such as a teacher's predictions.

    python benchmarks/method_cost.py fedprox fedkper
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from round_loop import CLASSES, make_sites, make_work
from torch import nn

from medfl.core.evaluation import Row
from medfl.core.site import Splits
from medfl.networks.cnn import CNN4
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.runs.simulation import Run, simulate
from medfl.settings import Settings
from medfl.task import Task

BASE = "fedavg"


def seconds_of(name: str, sites: Mapping[str, Splits], seed: int) -> float:
    """Seconds that all sites work in one round of a method."""
    registry = load_plugins()
    task = Task(
        {"cnn4": lambda: CNN4(3, CLASSES)},
        "cnn4",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        Multiclass(CLASSES),
        ("accuracy",),
    )
    written: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        simulate(
            Run(
                method=name,
                make_method=lambda: registry.make_method(name, {}),
                task=task,
                settings=Settings(rounds=1, epochs=5, batch_size=50, seed=seed),
                sites=sites,
                folder=Path(folder) / "run",
                on_round=lambda round_, rows: written.extend(rows),
            )
        )
    return sum(row.value for row in written if row.metric == "work_seconds")


def measure(names: list[str], repetitions: int, images: int) -> dict[str, float]:
    """Median ratio of each method's seconds to those of `BASE` in the same repetition."""
    work = make_work(2, images, 20, None)
    sites, _ = make_sites(work, ["site-1", "site-2"])
    seconds_of(BASE, sites, seed=0)  # the first run warms up
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for number in range(repetitions):
        turn = number % (len(names) + 1)
        order = [*names, BASE][turn:] + [*names, BASE][:turn]
        seconds = {name: seconds_of(name, sites, seed=number) for name in order}
        for name in names:
            ratios[name].append(seconds[name] / seconds[BASE])
    return {name: statistics.median(values) for name, values in ratios.items()}


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="+", help="names of methods (`medfl list methods`)")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--images", type=int, default=1200, help="training and test images of the two sites together")
    parser.add_argument("--json", type=Path, help="write the ratios here too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios = measure([name for name in options.methods if name != BASE], options.repetitions, options.images)
    for name, ratio in ratios.items():
        print(f"{name:<16} {ratio:6.2f} times {BASE}")
    if options.json:
        options.json.write_text(json.dumps(ratios, indent=2) + "\n")


if __name__ == "__main__":
    main()
