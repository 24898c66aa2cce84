"""FLamby's strategies on its heart disease and TCGA-BRCA data: a loop in NumPy, with FLamby's protocol and no medfl.

The mean over the sites is weighted by rows, also in SCAFFOLD, and a site's batches continue over the rounds. The first
axis (R) of all arrays is the run: one loop trains all initial weights and orders of batches. The figures explain
differences in `docs/results/flamby.md`. The studies prepare the data in the folder `runs`.

    medfl study studies/flamby_heart.yaml studies/flamby_tcga_brca.yaml --source FOLDER --out runs
    python benchmarks/flamby_loop.py --studies runs --json docs/results/flamby_loop.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

SEEDS = range(42, 47)
STEPS, FIRST_DECAY, SECOND_DECAY, TAU, FAILED = 100, 0.9, 0.999, 1e-8, 0.6


class Task(NamedTuple):
    """A data set of FLamby. A strategy has the sites' and the server's learning rates and the mu of FedProx."""

    sites: str
    inputs: int
    rounds: int
    batch: int
    gradient: Callable[[np.ndarray, np.ndarray], np.ndarray]
    score: Callable[[np.ndarray, np.ndarray], np.ndarray]
    strategies: dict[str, tuple[float, float, float]]


def logistic_gradient(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean cross entropy, for logits and labels (R, B)."""
    return (1 / (1 + np.exp(-logits)) - labels) / labels.shape[1]


def cox_gradient(risks: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the gradient of FLamby's Cox loss, for risks (R, B), and times and events (R, B, 2)."""
    order = np.argsort(-targets[..., 0], axis=1, kind="stable")
    hazards = np.exp(np.take_along_axis(risks, order, 1))
    events = np.take_along_axis(targets[..., 1], order, 1)
    later = np.cumsum((events / np.cumsum(hazards, axis=1))[:, ::-1], axis=1)[:, ::-1]
    gradient = np.empty_like(risks)
    np.put_along_axis(gradient, order, (hazards * later - events) / risks.shape[1], 1)
    return gradient


def accuracy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the accuracy of each run, for logits (R, N) and labels (N,)."""
    return ((logits > 0) == labels).mean(axis=1)


def c_index(risks: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return Harrell's C-index of each run, for risks (R, N), and times and events (N, 2)."""
    times, events = targets.T
    later = (times > times[:, None]) | ((times == times[:, None]) & (events == 0))
    first, second = np.nonzero((events[:, None] == 1) & later)
    gaps = risks[:, first] - risks[:, second]
    return ((gaps > 0) + (gaps == 0) / 2).mean(axis=1)


HEART = {"fedavg": (0.001, 1, 0), "fedprox": (0.001, 1, 0.01), "scaffold": (0.001, 1, 0)}
HEART |= {"fedadagrad": (0.003162, 0.316228, 0), "fedadam": (0.01, 0.01, 0)}
BRCA = {"fedavg": (0.1, 1, 0), "fedprox": (0.1, 1, 0.1), "scaffold": (0.01, 1, 0)}
BRCA |= {"fedadagrad": (0.01, 1, 0), "fedadam": (0.01, 0.1, 0)}
TASKS = {
    "heart": Task("flamby_heart/data/heart", 13, 15, 4, logistic_gradient, accuracy, HEART),
    "brca": Task("flamby_tcga_brca/data/brca", 39, 5, 8, cox_gradient, c_index, BRCA),
}


def initial_weights(inputs: int, seeds: Sequence[int]) -> np.ndarray:
    """Return the weights and the bias (R, F + 1) from which FLamby's runs with these seeds start."""
    models = []
    for seed in seeds:
        torch.manual_seed(seed)
        layer = nn.Linear(inputs, 1)
        models.append([*layer.weight[0].tolist(), layer.bias.item()])
    return np.array(models)


def read_site(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return features, with a last column of ones for the bias, and targets of a site's training and test rows."""
    datalist, site = json.loads(path.read_text(encoding="utf-8")), {}
    features = np.load(path.parent / datalist["image_array"]).astype(np.float64)
    features = np.hstack([features, np.ones((len(features), 1))])
    for split in ("training", "test"):
        targets = [row["label"] if "label" in row else row["target"] for row in datalist[split]]
        site[split] = features[[row["image"] for row in datalist[split]]], np.array(targets, dtype=np.float64)
    return site


def batches(rng: np.random.Generator, runs: int, rows: int, size: int) -> Iterator[np.ndarray]:
    """Yield batch after batch (R, B) of row numbers; each run and epoch has an order of its own."""
    while True:
        order = rng.permuted(np.tile(np.arange(rows), (runs, 1)), axis=1)
        yield from (order[:, start : start + size] for start in range(0, rows, size))


def scores(task: Task, name: str, sites: Sequence, seeds: Sequence[int], new_epochs: bool = False) -> np.ndarray:
    """Train a run from the initial weights of each seed, and return the mean scores over the sites (R,).

    With `new_epochs` each round begins a new epoch at each site, as in medfl.
    """
    lr, eta, mu = task.strategies[name]
    model, rng = initial_weights(task.inputs, seeds), np.random.default_rng(0)
    first, second, common = np.zeros((3, *model.shape))
    own, counts = np.zeros((len(sites), *model.shape)), np.array([len(site["training"][1]) for site in sites])
    order = [batches(rng, len(model), count, task.batch) for count in counts]
    for _ in range(task.rounds):
        mean, change = np.zeros((2, *model.shape))
        for k, share in enumerate(counts / counts.sum()):
            if new_epochs:
                order[k] = batches(rng, len(model), counts[k], task.batch)
            local, (features, targets) = model.copy(), sites[k]["training"]
            for rows in islice(order[k], STEPS):
                gradient = task.gradient(np.einsum("rbf,rf->rb", features[rows], local), targets[rows])
                gradient = np.einsum("rb,rbf->rf", gradient, features[rows])
                local -= lr * (gradient + mu * (local - model) + common - own[k])
            mean += share * (local - model)
            if name == "scaffold":
                own_change = (model - local) / (STEPS * lr) - common
                own[k] += own_change
                change += share * own_change
        common += change
        if name in ("fedadagrad", "fedadam"):
            first = FIRST_DECAY * first + (1 - FIRST_DECAY) * mean
            kept, added = (1, 1) if name == "fedadagrad" else (SECOND_DECAY, 1 - SECOND_DECAY)
            second = kept * second + added * mean**2
            mean = first / (np.sqrt(second) + TAU)
        model += eta * mean
    return np.mean([task.score(model @ site["test"][0].T, site["test"][1]) for site in sites], axis=0)


def measure(task: Task, sites: Sequence, orders: int, drawn: int) -> dict[str, float]:
    """Return the figures of a data set."""
    figures = {}
    for name in task.strategies:
        by_seed = scores(task, name, sites, np.repeat(SEEDS, orders).tolist()).reshape(len(SEEDS), orders)
        figures |= {f"{name}: mean": by_seed.mean(), f"{name}: deviation": by_seed.std(axis=0, ddof=1).mean()}
        figures |= {f"{name}: seed {s}": values.mean() for s, values in zip(SEEDS, by_seed, strict=True)}
        values = scores(task, name, sites, range(drawn))
        figures |= {f"{name}, drawn: mean": values.mean(), f"{name}, drawn: median": np.median(values)}
        figures |= {f"{name}, drawn: failed": (values < FAILED).mean(), f"{name}, drawn: deviation": values.std(ddof=1)}
    figures["fedavg, drawn: mean with new epochs"] = scores(task, "fedavg", sites, range(drawn), True).mean()
    return figures


def main() -> None:
    """Print the figures, and write them into a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=Path, required=True, help="folder of the two studies with their data")
    parser.add_argument("--orders", type=int, default=20, help="orders of the batches from each of FLamby's weights")
    parser.add_argument("--drawn", type=int, default=200, help="number of initial weights, of the seeds 0, 1 and so on")
    parser.add_argument("--json", type=Path, help="file of the figures")
    options = parser.parse_args()
    figures: dict[str, float] = {"orders": options.orders, "drawn": options.drawn}
    for name, task in TASKS.items():
        sites = [read_site(path) for path in sorted((options.studies / task.sites).glob("sites-*/*/datalist.json"))]
        measured = measure(task, sites, options.orders, options.drawn)
        figures |= {f"{name}, {key}": round(float(value), 6) for key, value in measured.items()}
    text = json.dumps(figures, indent=1) + "\n"
    print(text)
    if options.json is not None:
        options.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
