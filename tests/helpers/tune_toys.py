"""A small study to tune, real runs of it in this process, and made-up ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_records import run_file, summary_of

from medfl.cli.run import parse_overrides, run_bundle
from medfl.records.run_file import RunFile
from medfl.records.summary import MetricScores, SiteCosts, Summary

SMALL: dict[str, Any] = {
    "name": "small",
    "about": "Nothing but a test.",
    "bundle": "medmnist_classification",
    "data": {"demo": {"folder": "cohort"}},
    "seeds": 2,
    "metrics": ["auc", "accuracy"],
    "baseline": "mean",
    "settings": {"rounds": 4, "batch_size": 16, "optimizer#lr": 0.3},
    "rows": {"mean": {"method": "fedavg"}, "near": {"method": "fedprox", "method_args": {"mu": 0.5}}},
    "tune": {
        "sampler": "random",
        "trials": 3,
        "settings": {"optimizer#lr": {"low": 0.001, "high": 0.1, "log": True}},
        "rows": {"near": {"method_args": {"mu": {"low": 0.01, "high": 1.0, "log": True}}}},
    },
}


def launch_here(command: list[str], log: Path) -> int:
    """Carry a command out as a real run, in this process."""
    assert command[1:4] == ["-m", "medfl", "run"]
    log.parent.mkdir(parents=True, exist_ok=True)
    options = parse_overrides(command[5:])
    run_bundle(command[4], options)
    return 0


Score = Callable[[dict[str, Any]], float]
"""Options of a run to its validation score."""


def best_near(rate: float) -> Score:
    """Scores that are the better the nearer the learning rate is, and 0 there."""
    return lambda options: -abs(math.log(options["optimizer#lr"] / rate))


class MadeUpTrials:
    """Stands in for the processes: writes what a trial leaves, with scores of a function of its options.

    Args:
        score: Validation score of a run.
        metric: Name of the metric.
        status: Status of a run; None ends all.
        diverges: Whether the training of the second site diverges, so that it has no score; None means that none does.

    Attributes:
        calls: Options of each run that was started.
    """

    def __init__(
        self,
        score: Score,
        metric: str = "auc",
        status: Callable[[dict[str, Any]], str] | None = None,
        diverges: Callable[[dict[str, Any]], bool] | None = None,
    ) -> None:
        self.score, self.metric, self.status = score, metric, status or (lambda options: "finished")
        self.diverges = diverges or (lambda options: False)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, command: list[str], log: Path) -> int:
        options = parse_overrides(command[5:])
        self.calls.append(options)
        status = self.status(options)
        if status == "failed":
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("the last words")
            return 2
        folder, value = Path(options["output_dir"]), self.score(options)
        sites = {"site-1": value + 0.5, "site-2": None if self.diverges(options) else value - 0.25}
        scores = MetricScores(mean=value + 0.125, worst=None, sites=sites)
        spent = SiteCosts(
            bytes_up=0.0,
            bytes_down=0.0,
            bytes_to_peers=0.0,
            train_seconds=2.0 * options["rounds"],
            evaluate_seconds=0.5,
        )
        run = run_file("fedavg", list(sites), {"rounds": options["rounds"]})
        folder.mkdir(parents=True, exist_ok=True)
        run.write(folder / RunFile.NAME)
        summary = summary_of(run, {"global": {"val": {self.metric: scores}}}, status, costs={"site-1": spent})
        summary.write(folder / Summary.NAME)
        return 0


def without_seconds(record: Path) -> str:
    """The text of a search's record, without what a clock said."""
    content = json.loads(record.read_text())
    for result in content["results"]:
        del result["seconds"]
    return json.dumps(content, indent=2)
