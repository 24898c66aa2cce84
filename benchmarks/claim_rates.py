"""Measure how often medfl claims a difference between two models that do not differ, and between two that do.

A cell is a metric, a number of sites, a number of test patients at each site, and one of three kinds of models:

- ``equal``: the errors of both models have the same distribution. Each claim is false.
- ``other shape``: both models have the same expected score, but scores of another distribution. Each claim is false.
- ``better``: the first model is better by a fixed effect. The share of claims is the power.

Half of the variance of the errors is common to both models. The claim is about the mean over the sites, by the
procedure that `medfl_report.statistics.procedures` chooses. A cell simulates test sets until it has
used its CPU seconds, at least 100 and at most `--simulations` times.

With ``--page docs/statistics.md`` the tables of the page between its markers are replaced. The counts of each cell are
written into ``docs/statistics_rates.csv`` at once. A later run, for example after an interruption, continues each cell
up to `--simulations`. Delete the file to begin again.

    python benchmarks/claim_rates.py --simulations 300
    python benchmarks/claim_rates.py --page docs/statistics.md
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm

from medfl.metrics.regression import mae
from medfl.metrics.segmentation import mean_over_cases
from medfl.metrics.survival import concordance
from medfl.objectives import Binary, Multiclass
from medfl_report.patient_tests import SiteModels, compare_models, is_rank_metric
from medfl_report.statistics import (
    LEVEL,
    ScoreFunction,
    choose_for_models,
    combine_p,
    exchange,
    mean_bootstrap,
    paired_t,
    runs_test,
    seeds_and_patients_test,
    wilson,
)
from medfl_report.statistics.procedures import PATIENT_BOOTSTRAP, TOO_FEW, procedures_markdown

PATIENTS = (3, 6, 20, 100, 500, 2000)
"""Numbers of patients of cells with one site."""

SITES = ((20, 3), (5, 10), (20, 50))
"""Number of sites, and patients at each site, of the other cells."""

MIN_SIMULATIONS, SIMULATIONS = 100, 10000
"""Minimum and full number of simulations of a cell; rates of fewer than the full number are shown with an interval."""

EXCHANGES, RESAMPLES = 999, 500
"""Numbers of random exchanges and of resamples; a claim's p-value is valid with any number."""

LARGE, LARGE_SIMULATIONS = 500, 1000
"""Number of patients in all from which power, which is near 100 %, has fewer simulations, and number of these."""

SHAPES = ("balanced_accuracy", "auc", "dice", "mae")
"""Metrics for which models of equal score and another distribution are simulated."""

FEW_CELLS, FEW_PATIENTS = ("f1", "brier"), 50
"""Metrics of which only cells of the kind ``equal`` with few patients are simulated, and largest number of these."""

SPLITS, SPLIT_PATIENTS = (3, 5, 10), (80, 400)
"""Numbers of splits, and numbers of patients that are split."""

TEST_PART, FEATURES = 4, 10
"""Patients of a split divided by its test patients, and number of features of each of the two regressions."""


@dataclass(frozen=True)
class Models:
    """Predictions of two models for the patients of a site.

    Attributes:
        a: Predictions of the first model, (N, K).
        b: Predictions of the second model, (N, K).
        targets: Targets, (N, ...).
        score: Function that computes the metric.
    """

    a: torch.Tensor
    b: torch.Tensor
    targets: torch.Tensor
    score: ScoreFunction


Key = tuple[str, str, int, int]
"""Kind, metric, number of sites, and number of patients at each site of a cell."""


@dataclass(frozen=True)
class Cell:
    """Rate of claims in one cell.

    Attributes:
        kind: ``equal``, ``other shape`` or ``better``.
        metric: Name of the metric.
        sites: Number of sites.
        patients: Number of test patients at each site.
        simulations: Number of simulated test sets.
        claims: Number of claims.
    """

    kind: str
    metric: str
    sites: int
    patients: int
    simulations: int = 0
    claims: int = 0

    @property
    def key(self) -> Key:
        """Kind, metric, sites and patients."""
        return self.kind, self.metric, self.sites, self.patients


def noises(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw standard normal errors of two models, (N,) each, with a correlation of 0.5."""
    shared, *own = rng.normal(size=(3, size)) * math.sqrt(0.5)
    return shared + own[0], shared + own[1]


def two_columns(values: np.ndarray) -> torch.Tensor:
    """Return class probabilities of two classes, (N, 2), for logits (N,)."""
    logits = torch.from_numpy(values)
    return torch.stack([-logits, logits], dim=1).softmax(dim=1)


def classifier(metric: str, rng: np.random.Generator, size: int, gain: float) -> Models:
    """Simulate two classifiers; `gain` raises the first one's logits of the right class."""
    labels = rng.integers(2, size=size)
    pair = [(2 * labels - 1) * (0.7 + more) + noise for more, noise in zip((gain, 0.0), noises(rng, size))]
    objective = Binary(logits=2) if metric == "brier" else Multiclass(2)
    score = partial(objective.weighted_score, metric)
    return Models(two_columns(pair[0]), two_columns(pair[1]), torch.from_numpy(labels), score)


def segmenter(metric: str, rng: np.random.Generator, size: int, gain: float) -> Models:
    """Simulate the Dice of two segmentations."""
    a, b = (torch.from_numpy(1 + more + noise).sigmoid()[:, None] for more, noise in zip((gain, 0), noises(rng, size)))
    return Models(a, b, torch.zeros(size, 1), mean_dice)


def mean_dice(predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mean of the cases' Dice, (B,)."""
    return mean_over_cases(predictions, weights)


def survival(metric: str, rng: np.random.Generator, size: int, gain: float) -> Models:
    """Simulate the risks of two survival models, with censored times."""
    risk = rng.normal(size=size)
    times, end = rng.exponential(np.exp(-3 * risk)), rng.exponential(10.0, size=size)
    a, b = (torch.from_numpy((0.7 + more) * risk + noise)[:, None] for more, noise in zip((gain, 0), noises(rng, size)))
    return Models(a, b, torch.from_numpy(np.stack([np.minimum(times, end), times <= end], axis=1)), concordance)


def regression(metric: str, rng: np.random.Generator, size: int, gain: float) -> Models:
    """Simulate two regressions; the errors of the first one are smaller by the factor 1 - `gain`."""
    a, b = (torch.from_numpy(scale * noise)[:, None] for scale, noise in zip((1 - gain, 1.0), noises(rng, size)))
    return Models(a, b, torch.zeros(size, 1, dtype=torch.float64), mae)


def other_shape(metric: str, rng: np.random.Generator, size: int, gain: float) -> Models:
    """Simulate two models of the same expected score whose predictions have different distributions."""
    if metric == "mae":  # normal errors and exponential errors with the same mean
        errors = [np.abs(rng.normal(size=size)), rng.exponential(math.sqrt(2 / math.pi), size=size)]
        a, b = (torch.from_numpy(error)[:, None] for error in errors)
        return Models(a, b, torch.zeros(size, 1, dtype=torch.float64), mae)
    if metric == "dice":  # mean 0.85: a model that fails now and then, and a steady one
        a, b = (torch.from_numpy(rng.beta(*shape, size))[:, None] for shape in ((1.7, 0.3), (85, 15)))
        return Models(a, b, torch.zeros(size, 1), mean_dice)
    if metric == "auc":  # positives with a standard deviation of 1, and of 3
        labels = rng.integers(2, size=size)
        sides = [
            np.where(labels == 1, rng.normal(math.sqrt((1 + spread**2) / 2), spread, size), rng.normal(size=size))
            for spread in (1.0, 3.0)
        ]
    else:  # sensitivity 0.9 and specificity 0.6, and the reverse; 20 % positives
        labels = (rng.random(size) < 0.2).astype(np.int64)
        sides = [
            np.where(rng.random(size) < np.where(labels == 1, *shares), 1.0, -1.0) * (2 * labels - 1)
            for shares in ((0.9, 0.6), (0.6, 0.9))
        ]
    score = partial(Multiclass(2).weighted_score, metric)
    return Models(two_columns(sides[0]), two_columns(sides[1]), torch.from_numpy(labels), score)


Simulator = Callable[[str, np.random.Generator, int, float], Models]

METRICS: dict[str, tuple[Simulator, float]] = {
    "accuracy": (classifier, 0.5),
    "balanced_accuracy": (classifier, 0.5),
    "auc": (classifier, 0.5),
    "ece": (classifier, 0.5),
    "dice": (segmenter, 0.5),
    "c_index": (survival, 0.5),
    "mae": (regression, 0.3),
    "f1": (classifier, 0.5),
    "brier": (classifier, 0.5),
}
"""Maps each metric to its simulator and the effect of the kind ``better``."""


def is_claimed(weighted: list[tuple[float, SiteModels]], seed: int) -> bool:
    """Return whether `compare_models` claims a difference, without computing what can't change the answer.

    Of fewer than six patients nothing is claimed. If Student's t test with the jackknife's variance is not significant,
    the resamples of a bootstrap are not drawn, because both must be significant.
    """
    procedure = choose_for_models([models.patient_count for _, models in weighted])
    if procedure is TOO_FEW:
        return False
    if procedure is PATIENT_BOOTSTRAP:
        parts = [(weight, replace(models, resamples=0).bootstrap) for weight, models in weighted]
        if mean_bootstrap([(weight, part) for weight, part in parts if part is not None]).jackknife_p > LEVEL:
            return False
    test = compare_models(weighted, seed)
    return test.is_significant and not test.too_few


def continue_cell(cell: Cell, simulations: int, seconds: float) -> Cell:
    """Return a cell with more simulations.

    Args:
        cell: Cell with its simulations so far, which may be 0.
        simulations: Largest number of simulations in all.
        seconds: CPU seconds for more than `MIN_SIMULATIONS`.
    """
    kind, metric, sites, patients = cell.key
    done, claims = cell.simulations, cell.claims
    simulate, effect = METRICS[metric]
    gain = effect if kind == "better" else 0.0
    simulate = other_shape if kind == "other shape" else simulate
    seed = [zlib.crc32(f"{kind} {metric}".encode()), sites, patients]
    rng, begin = np.random.default_rng([*seed, done] if done else seed), time.process_time()
    least = min(MIN_SIMULATIONS, simulations)
    while done < simulations and (done < least or time.process_time() - begin < seconds):
        drawn = [simulate(metric, rng, patients, gain) for _ in range(sites)]
        parts = [
            SiteModels(
                models.score,
                ((models.a, models.b),),
                models.targets,
                None,
                (done, place),
                is_rank_metric(metric),
                RESAMPLES,
            )
            for place, models in enumerate(drawn)
        ]
        if is_rank_metric(metric) or metric == "f1":  # undefined without a case of a class, or without an event
            ones = torch.ones(patients, 1, dtype=torch.float64)
            parts = [part for part in parts if not part.score(part.pairs[0][0], part.targets, ones).isnan()]
        claims += bool(parts) and is_claimed([(1 / len(parts), part) for part in parts], done)
        done += 1
    return Cell(kind, metric, sites, patients, done, claims)


def measure_seeds(seeds: int, ratio: float, simulations: int) -> list[tuple[str, int, float, float, float]]:
    """Return rates of false claims over seeds and 200 patients, by three rules.

    Args:
        seeds: Number of seeds.
        ratio: Variance of the mean from the seeds, divided by the variance from the patients.
        simulations: Number of simulated studies.
    """
    rng, claims = np.random.default_rng([seeds, round(100 * ratio)]), np.zeros(3)
    for _ in range(simulations):
        common, variance = rng.normal(), rng.chisquare(199) / 199
        differences = (common + math.sqrt(ratio * seeds) * rng.normal(size=seeds)).tolist()
        crossed, alone = seeds_and_patients_test(differences, variance, 200), paired_t(differences)
        over_seeds = alone is not None and alone.excludes_zero
        over_patients = abs(float(np.mean(differences))) > norm.isf(LEVEL / 2) * math.sqrt(variance)
        claims += (crossed.p <= LEVEL, over_seeds, over_seeds and over_patients)
    return [("seeds", seeds, ratio, *(claims / simulations))]


def split_errors(features: np.ndarray, targets: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Return the absolute test errors of a regression by least squares in each split, (splits, test patients).

    Args:
        features: Features of the patients, (patients, features).
        targets: Targets of the patients, (patients,).
        orders: Order of the patients in each split, (splits, patients); the test patients are the first ones.
    """
    size = len(targets) // TEST_PART
    tested, trained = orders[:, :size], orders[:, size:]
    x = features[trained]
    weights = np.linalg.solve(x.mT @ x, x.mT @ targets[trained][..., None])
    return np.abs(targets[tested] - (features[tested] @ weights)[..., 0])


def measure_splits(splits: int, patients: int, simulations: int) -> list[tuple[str, int, float, float, float]]:
    """Return rates of false claims over several splits of the same patients, by three rules.

    Two regressions learn from different features that are equally informative. So neither has a smaller expected error
    on new patients after a training with other patients.

    Args:
        splits: Number of random splits.
        patients: Number of patients that each split divides into training and test patients.
        simulations: Number of simulated studies.
    """
    rng, claims, ratio = np.random.default_rng([splits, patients]), np.zeros(3), 1 / (TEST_PART - 1)
    for number in range(simulations):
        features = rng.normal(size=(2, patients, FEATURES))
        targets = features.sum(axis=(0, 2)) + rng.normal(size=patients)
        orders = rng.permuted(np.tile(np.arange(patients), (splits, 1)), axis=1)
        errors = [split_errors(part, targets, orders) for part in features]
        differences = (errors[0] - errors[1]).mean(axis=1).tolist()
        over_splits = runs_test(differences, ratio).p <= LEVEL
        both = over_splits and combine_p([split_p(a, b, number) for a, b in zip(*errors)]) <= LEVEL
        claims += (both, over_splits, runs_test(differences).p <= LEVEL)
    return [("splits", splits, patients, *(claims / simulations))]


def split_p(a: np.ndarray, b: np.ndarray, seed: int) -> float:
    """Return the p-value of the test over the patients of one split, for the absolute errors of two models."""
    pair = (torch.from_numpy(a)[:, None], torch.from_numpy(b)[:, None])
    targets = torch.zeros(len(a), 1, dtype=torch.float64)
    models = SiteModels(mae, (pair,), targets, None, (seed, 0), order_only=False, resamples=RESAMPLES)
    p = compare_models([(1.0, models)], seed).p
    return 1.0 if p is None else p


def rate(cell: Cell) -> str:
    """Format the rate of claims of a cell in percent."""
    return f"{100 * cell.claims / cell.simulations:.1f}"


def rate_markdown(cell: Cell) -> str:
    """Format the rate of a cell in percent; with few simulations, add its 95 % interval and their number."""
    if cell.simulations >= SIMULATIONS:
        return rate(cell)
    low, high = (f"{100 * end:.1f}" for end in wilson(cell.claims, cell.simulations))
    return f"{rate(cell)} ({low} to {high}; {cell.simulations:,})"


def cells_markdown(cells: list[Cell], kind: str) -> str:
    """Return the table of one kind: a row for each number of patients and sites, a column for each metric."""
    chosen = [cell for cell in cells if cell.kind == kind]
    metrics = list(dict.fromkeys(cell.metric for cell in chosen))
    lines = [["sites", "patients at each", *metrics], ["---"] * (len(metrics) + 2)]
    for place in dict.fromkeys((cell.sites, cell.patients) for cell in chosen):
        row = {cell.metric: cell for cell in chosen if (cell.sites, cell.patients) == place}
        lines.append([*map(str, place), *(rate_markdown(row[metric]) if metric in row else "" for metric in metrics)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rules_markdown(head: list[str], rows: list[tuple[str, int, float, float, float]]) -> str:
    """Return the table of three rules: number of runs, another number, and the rate of each rule."""
    lines = [head, ["---"] * 5]
    lines += [[str(row[1]), f"{row[2]:g}", *(f"{100 * value:.1f}" for value in row[3:])] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


SEEDS_HEAD = ["seeds", "variance of seeds / patients", "seeds and patients", "seeds alone", "seeds, and patients apart"]
"""Heading of the table of the rules over seeds and patients."""

SPLITS_HEAD = ["splits", "patients", "corrected t and patients", "corrected t alone", "t without correction"]
"""Heading of the table of the rules over splits."""


def update_page(page: Path, tables: dict[str, str]) -> None:
    """Replace the tables of a page between its markers, such as `<!-- equal -->` and `<!-- end -->`."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = re.sub(
            rf"<!-- {name} -->.*?<!-- end -->",
            lambda _, n=name, t=table: f"<!-- {n} -->\n\n{t}\n\n<!-- end -->",
            text,
            flags=re.DOTALL,
        )
    page.write_text(text, encoding="utf-8")


def read_cells(path: Path | None) -> dict[Key, Cell]:
    """Return the cells of a CSV file by their keys; none if there is no file."""
    if path is None or not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    cells = [Cell(kind, metric, *(int(number) for number in numbers)) for kind, metric, *numbers in rows]
    return {cell.key: cell for cell in cells}


def write_cells(path: Path, cells: Iterable[Cell]) -> None:
    """Write cells that have simulations into a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [astuple(cell) for cell in cells if cell.simulations]
        csv.writer(file, lineterminator="\n").writerows([[field.name for field in fields(Cell)], *rows])


def measure_cells(keys: list[Key], path: Path | None, simulations: int, seconds: float) -> list[Cell]:
    """Return measured cells, and write each into a CSV file at once.

    Args:
        keys: Keys of the cells.
        path: CSV file, whose cells are continued; None begins all cells and writes no file.
        simulations: Largest number of simulations of a cell.
        seconds: CPU seconds of a cell.
    """
    finished = read_cells(path)
    cells = {key: finished.get(key, Cell(*key)) for key in keys}
    for key in sorted(keys, key=lambda cell: (cell[0] == "better", cell[2] * cell[3])):  # power and slow cells last
        is_large_power = key[0] == "better" and key[2] * key[3] >= LARGE
        number = min(simulations, LARGE_SIMULATIONS) if is_large_power else simulations
        cells[key] = continue_cell(cells[key], number, seconds)
        if path is not None:
            write_cells(path, cells.values())
        print("{}, {}, {} sites, {} patients:".format(*key), rate(cells[key]), "%", flush=True)
    return list(cells.values())


def main() -> None:
    """Measure all cells, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=SIMULATIONS, help="largest number of simulations of a cell")
    parser.add_argument("--seconds", type=float, default=100.0, help="CPU seconds of a cell")
    parser.add_argument("--patients", type=int, nargs="*", default=list(PATIENTS), help="patients of one site")
    parser.add_argument("--one-site", action="store_true", help="leave out the cells with several sites")
    parser.add_argument("--page", type=Path, help="page whose tables are replaced; a CSV file is written beside it")
    parser.add_argument("--json", type=Path, help="write the rates into this file")
    options = parser.parse_args()
    exchange.EXCHANGES = EXCHANGES
    torch.set_num_threads(1)
    places = [(1, number) for number in options.patients] + ([] if options.one_site else list(SITES))
    full = [metric for metric in METRICS if metric not in FEW_CELLS]
    keys = [("equal", metric, *place) for metric in full for place in places]
    keys += [("equal", name, *place) for name in FEW_CELLS for place in places if math.prod(place) <= FEW_PATIENTS]
    keys += [("better", metric, *place) for metric in full for place in places]
    keys += [("other shape", metric, *place) for metric in SHAPES for place in places]
    path = None if options.page is None else options.page.with_name(f"{options.page.stem}_rates.csv")
    cells = measure_cells(keys, path, options.simulations, options.seconds)
    seeds = [
        row
        for number in (3, 5, 10)
        for ratio in (0.1, 1, 10)
        for row in measure_seeds(number, ratio, options.simulations)
    ]
    splits = [
        row
        for number in SPLITS
        for patients in SPLIT_PATIENTS
        for row in measure_splits(number, patients, options.simulations)
    ]
    if options.page is not None:
        tables = {kind: cells_markdown(cells, kind) for kind in ("equal", "other shape", "better")}
        tables |= {"seeds": rules_markdown(SEEDS_HEAD, seeds), "splits": rules_markdown(SPLITS_HEAD, splits)}
        update_page(options.page, tables | {"procedures": procedures_markdown()})
    if options.json is not None:
        figures = {f"{cell.kind}, {cell.metric}, {cell.sites} x {cell.patients}": rate(cell) for cell in cells}
        options.json.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
