"""What methods cost beside fedavg at the sites and on the way, in ratios from interleaved runs.

Each repetition runs a few rounds of every method on the same sites, one after the other in a new order, so all meet the
same machine, and counts one round: not the first, which prepares, nor the last, which may end with a further step. The
work: two sites of a 28-pixel RGB data set, 5 local epochs, batch 50, the four-layer CNN, one thread. Seconds are the
sites': training, and what a method does before and after it, such as a teacher's predictions. Bytes are those of
messages from the server, to it, and from site to site.

    python benchmarks/method_cost.py
    python benchmarks/method_cost.py fedprox fedkper
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from round_loop import CLASSES, make_sites, make_work
from torch import nn

from medfl.engine.evaluation import MetricRow
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.networks.cnn import CNN4
from medfl.objectives import Multiclass
from medfl.plugins import Registry, load_plugins
from medfl.settings import Settings
from medfl.task import ImageScale, Task
from medfl.types import Dataset, Meta
from medfl.utils.progress import progress_bar

BASE = "fedavg"

ROUNDS, COUNTED = 4, 3
"""Rounds of a run, and the one that counts."""

PUBLIC = 100
"""Public images, for methods whose server needs some."""

SETTINGS: Mapping[str, Meta] = {
    "fedcross": {"route": "derangement"},  # so that models travel in each round
    **dict.fromkeys(
        ("fedcross_star", "fedskd"), {"route": "derangement", "p2p_scale": 1}
    ),  # and train as long as others
    **dict.fromkeys(("fedfed", "fedtpf"), {"distil_rounds": 1}),  # the stage of the task's network is counted
    "pfedcdp": {"refine": None},  # its student is made after the last round
}
"""Settings of methods that would do another amount of work by themselves, or other work in the round that counts."""


@dataclass(frozen=True)
class Cost:
    """What a round costs.

    Attributes:
        work: Seconds that the sites work, as a multiple of those of `BASE`.
        down: Bytes from the server to the sites, as a multiple of those of `BASE`.
        up: Bytes from the sites to the server, likewise.
        across: Bytes from site to site, as a multiple of what `BASE` sends up.
    """

    work: float
    down: float
    up: float
    across: float


@dataclass(frozen=True)
class Bench:
    """Everything that all runs share."""

    registry: Registry
    sites: Mapping[str, Splits]
    public: Dataset

    def totals(self, name: str, seed: int) -> dict[str, float]:
        """Seconds and bytes of all sites in the round that counts, by the names of ``metrics.csv``."""
        task = Task(
            {"cnn4": lambda: CNN4(3, CLASSES)},
            "cnn4",
            nn.CrossEntropyLoss(),
            lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            Multiclass(CLASSES),
            ("accuracy",),
            scale=ImageScale((3, 28, 28), (0.5,) * 3, (0.5,) * 3),
        )
        written: list[MetricRow] = []
        settings = dict(SETTINGS.get(name, {}))
        with tempfile.TemporaryDirectory() as folder:
            simulate(
                SimulatedRun(
                    method=MethodChoice(name=name, make=lambda: self.registry.make_method(name, settings)),
                    task=task,
                    settings=Settings(rounds=ROUNDS, epochs=5, batch_size=50, seed=seed, evaluate_every=ROUNDS),
                    data=RunData(
                        sites=self.sites,
                        public=self.public if "public_data" in self.registry.method_class(name).needs else None,
                    ),
                    folder=Path(folder) / "run",
                    callbacks=Callbacks(on_round=lambda round_, rows: written.extend(rows)),
                )
            )
        counted = [row for row in written if row.round == COUNTED]
        metrics = ("work_seconds", "bytes_down", "bytes_up", "bytes_to_peers")
        return {metric: sum(row.value for row in counted if row.metric == metric) for metric in metrics}


def measure(bench: Bench, names: list[str], repetitions: int) -> dict[str, Cost]:
    """Each method's cost: bytes, and the median of the ratios of seconds within a repetition."""
    bench.totals(BASE, seed=0)  # the first run warms up
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    runs = len(names) + 1

    def plain(done: int, total: int | None = None, text: str | None = None) -> None:
        if done % runs == 0:
            print(f"{done // runs} of {repetitions} repetitions", file=sys.stderr)

    with progress_bar("run", repetitions * runs, plain=plain) as show:
        for number in range(repetitions):
            turn = number % runs
            totals: dict[str, dict[str, float]] = {}
            for name in [*names, BASE][turn:] + [*names, BASE][:turn]:
                totals[name] = bench.totals(name, seed=number)
                show(number * runs + len(totals))
            base = totals[BASE]
            for name in names:
                work, down, up, across = totals[name].values()
                sent = base["bytes_up"]
                cost = Cost(work / base["work_seconds"], down / base["bytes_down"], up / sent, across / sent)
                costs[name].append(cost)
    return {
        name: replace(repeated[0], work=statistics.median(cost.work for cost in repeated))
        for name, repeated in costs.items()
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="names of methods (`medfl list methods`); all otherwise")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--images", type=int, default=1200, help="training and test images of the two sites together")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    registry = load_plugins()
    work = make_work(2, options.images, PUBLIC, None)
    sites, public = make_sites(work, ["site-1", "site-2"])
    sites = {name: replace(site, val=site.test) for name, site in sites.items()}  # some methods weigh by them
    names = options.methods or sorted(registry.methods)
    costs = measure(Bench(registry, sites, public), [name for name in names if name != BASE], options.repetitions)
    print(f"{'times ' + BASE:<16} {'work':>6} {'down':>6} {'up':>6} {'across':>6}")
    for name, cost in costs.items():
        print(f"{name:<16} {cost.work:6.2f} {cost.down:6.2f} {cost.up:6.2f} {cost.across:6.2f}")
    if options.json:
        options.json.write_text(json.dumps({name: asdict(cost) for name, cost in costs.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
