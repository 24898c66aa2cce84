"""Measure the computation and communication cost of methods relative to fedavg, in interleaved runs.

Each repetition runs a few rounds of every method on the same sites, one method after the other. The order changes with
each repetition, so the load of the machine affects all methods equally. Only one round is counted: the first round
includes preparation, and the last round may end with an additional step. The workload: two sites of a 28-pixel RGB data
set, 5 local epochs, batch 50, the four-layer CNN, one thread. The time is the sites' time for training and for the
computations of the method before and after it, such as a teacher's predictions. The bytes are the bytes of the messages
from the server, to the server and from site to site.

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
from round_loop import CLASSES, make_sites, make_workload
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
"""Number of rounds of a run, and the number of the round that is counted."""

PUBLIC = 100
"""Number of public images, for methods that need them on the server."""

SETTINGS: Mapping[str, Meta] = {
    "fedcross": {"route": "derangement"},  # every model moves in each round
    **dict.fromkeys(
        ("fedcross_star", "fedskd"), {"route": "derangement", "p2p_scale": 1}
    ),  # and trains as long as in other methods
    **dict.fromkeys(("fedfed", "fedtpf"), {"distil_rounds": 1}),  # the counted round trains the task's network
    "pfedcdp": {"refine": None},  # trains the student after the last round, which is not counted
}
"""Settings by method name. With its default settings, each of these methods would do a different amount of work, or
different work in the counted round."""


@dataclass(frozen=True)
class Cost:
    """Cost of one round relative to the method `BASE`.

    Attributes:
        work: Computation time of the sites, as a multiple of the time of `BASE`.
        down: Bytes from the server to the sites, as a multiple of the same bytes of `BASE`.
        up: Bytes from the sites to the server, as a multiple of the same bytes of `BASE`.
        across: Bytes from site to site, as a multiple of the bytes that `BASE` sends to the server.
    """

    work: float
    down: float
    up: float
    across: float


@dataclass(frozen=True)
class SharedInputs:
    """Inputs that are the same for all runs.

    Attributes:
        registry: Registry of the methods.
        sites: Data of each site, by the site's name.
        public: Public images, for methods that need them on the server.
    """

    registry: Registry
    sites: Mapping[str, Splits]
    public: Dataset

    def totals(self, name: str, seed: int) -> dict[str, float]:
        """Run a method and return the sums over the sites in the counted round, by the metric's name in `metrics.csv`.

        Args:
            name: Name of the method.
            seed: Seed of the run.

        Returns:
            The keys are ``work_seconds``, ``bytes_down``, ``bytes_up`` and ``bytes_to_peers``.
        """
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


def measure(inputs: SharedInputs, names: list[str], repetitions: int) -> dict[str, Cost]:
    """Return the cost of each method by its name. The time ratio is the median over the repetitions."""
    inputs.totals(BASE, seed=0)  # a warm-up
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
                totals[name] = inputs.totals(name, seed=number)
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
    """Run the measurements and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="names of methods (`medfl list methods`); default: all")
    parser.add_argument("--repetitions", type=int, default=7, help="repetitions of all methods")
    parser.add_argument(
        "--images", type=int, default=1200, help="total number of training and test images of the two sites"
    )
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    registry = load_plugins()
    work = make_workload(2, options.images, PUBLIC, None)
    sites, public = make_sites(work, ["site-1", "site-2"])
    sites = {
        name: replace(site, val=site.test) for name, site in sites.items()
    }  # some methods weight sites by validation scores
    names = options.methods or sorted(registry.methods)
    costs = measure(
        SharedInputs(registry, sites, public), [name for name in names if name != BASE], options.repetitions
    )
    print(f"{'times ' + BASE:<16} {'work':>6} {'down':>6} {'up':>6} {'across':>6}")
    for name, cost in costs.items():
        print(f"{name:<16} {cost.work:6.2f} {cost.down:6.2f} {cost.up:6.2f} {cost.across:6.2f}")
    if options.json:
        options.json.write_text(json.dumps({name: asdict(cost) for name, cost in costs.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
