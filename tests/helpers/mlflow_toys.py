"""A run for MLflow: what it writes, what the store then holds, and what it should hold."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")

from mlflow import MlflowClient

import medfl_mlflow
from medfl.engine.evaluation import MetricRow, rows_to_csv

SETTINGS = {"rounds": 2, "optimizer.lr": 0.01, "method_args.mu": 0.1, "norm_bound": None, "method": "fedprox"}


def told(folder: Path, **more: str) -> dict[str, str]:
    return {"tracking_uri": (folder / "store").as_uri(), "experiment_name": "ours", "run_name": "first", **more}


def rows(round_: int, evaluated: int | None) -> list[MetricRow]:
    """Return the rows of a round: its costs, and the scores of the round before, which are ready only now."""
    written = [
        MetricRow(round_, site, "personal", "train", "trained", "bytes_up", size)
        for site, size in (("site-01", 100.0), ("site-02", 300.0))
    ]
    for site, value in (("site-01", 0.5), ("site-02", 0.75), ("site-03", float("nan")), ("global", 0.125)):
        if evaluated is not None:
            written.append(
                MetricRow(evaluated, site, "global", "test", "aggregated", "accuracy", value + evaluated / 64)
            )
    return written


def write(folder: Path, *steps: list[MetricRow]) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "metrics.csv").open("a") as file:
        for step in steps:
            file.write(rows_to_csv(step, header=file.tell() == 0))


def the_run(folder: Path, name: str = "ours"):
    client = MlflowClient(tracking_uri=(folder.parent / "store").as_uri())
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


def stored(folder: Path) -> dict[str, list[tuple[int, float]]]:
    client, run = the_run(folder)
    return {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read values from metrics.csv without the plugin's code."""
    groups: dict[tuple[str, int], dict[str, float]] = {}
    with (folder / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            if row["value"] != "nan":
                key = (f"{row['model']}/{row['split']}/{row['metric']}", int(row["round"]))
                groups.setdefault(key, {})[row["site"]] = float(row["value"])
    series: dict[str, list[tuple[int, float]]] = {}
    for (name, step), values in sorted(groups.items()):
        for site, value in values.items():
            series.setdefault(f"{name}/{site}", []).append((step, value))
        mean = fmean(value for site, value in values.items() if site != "global")
        series.setdefault(f"{name}/mean", []).append((step, mean))
    return series


def begin(folder: Path, settings: dict | None = None, **more: str) -> None:
    medfl_mlflow.medfl_run_started(str(folder), settings or SETTINGS, told(folder.parent, **more))
