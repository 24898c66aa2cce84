"""Read the results of run folders, for reports and comparisons."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from medfl.engine.evaluation import MetricRow
from medfl.engine.runs.run_files import read_run_files
from medfl.errors import StoreError
from medfl.objectives import Multiclass, Objective, read_objective
from medfl.records.run_file import RunFile, TaskIdentity
from medfl.records.summary import ConstantPrediction, ImageCounts, MetricScores, Summary
from medfl.settings import Settings
from medfl.types import METADATA_KEYS, PathLike
from medfl.utils.text import plain_name

if TYPE_CHECKING:
    import pandas as pd

PREDICTIONS = "predictions.csv"
"""Name of the file with a site's predictions in its exported bundle. It has one line for each case of the test split.

The columns are the row, the columns of the target (`Objective.scoring_target_columns`), the columns of the prediction
(`Objective.columns`), and sex, centre and number of the patient if they are known.
"""

TEST_CONFIG = Path("configs", "test_cases.json")
"""Path, in an exported stock bundle, of the configuration that makes the bundle's ``evaluate`` score the test cases.

A stock bundle is a MONAI bundle that was not written for medfl.
"""


@dataclass(frozen=True)
class RunRecord:
    """Content of a run folder.

    Attributes:
        folder: Path of the run folder.
        run: Content of ``run.json``.
        summary: Content of ``summary.json``; None while the run is not over.
        metrics: Table ``metrics.csv`` with the columns round, site, model, split, moment, metric, value.
    """

    folder: Path
    run: RunFile
    summary: Summary | None
    metrics: pd.DataFrame

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.run.identity.method

    @cached_property
    def objective(self) -> Objective:
        """Objective of the task, such as a multiclass classification or a segmentation."""
        return read_task_objective(self.run.identity.task)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.run.identity.seed

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return self.run.identity.sites

    @property
    def task_metrics(self) -> tuple[str, ...]:
        """Names of the metrics of the task."""
        return self.run.identity.task.metrics

    @property
    def settings(self) -> Settings:
        """Settings of the run."""
        return self.run.settings

    @property
    def data(self) -> str:
        """Digest of the data of all sites; equal for runs that can be compared image by image."""
        return self.run.identity.data

    @property
    def fold(self) -> int | None:
        """Number of the cross-validation fold that is the sites' test sets, from 0; None without a cross-validation."""
        fold = self.run.provenance.data.fold
        return None if fold is None else fold.fold

    @property
    def folds(self) -> int | None:
        """Number of folds of the cross-validation; None without a cross-validation."""
        fold = self.run.provenance.data.fold
        return None if fold is None else fold.folds

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the network's outputs if cases are of no class; empty if no one named them."""
        names = () if self.summary is None else self.summary.names
        return tuple(plain_name(name, str(number)) for number, name in enumerate(names))

    @property
    def data_folder(self) -> Path | None:
        """Path of the folder with the data, resolved from the current place of the run folder; None if not known."""
        folder = self.run.provenance.data.folder
        return None if folder is None else Path(os.path.normpath(self.folder.absolute() / folder))

    @property
    def status(self) -> str:
        """``finished``, ``diverged``, ``incomplete``, or ``running`` for a run without an end (also a killed one)."""
        return "running" if self.summary is None else self.summary.status

    @property
    def scores(self) -> Mapping[str, Mapping[str, Mapping[str, MetricScores]]]:
        """Maps kind of model, split and metric to the final scores; empty while the run is not over."""
        return {} if self.summary is None else self.summary.scores

    @property
    def holdings(self) -> ImageCounts | None:
        """Numbers of images by site, split and class; None if the run does not know them, or is not over."""
        return None if self.summary is None else self.summary.holdings

    @property
    def evaluated_round(self) -> int | None:
        """Round of the final scores; None if there are none."""
        return None if self.summary is None else self.summary.evaluated_round

    @property
    def constant_predictions(self) -> tuple[ConstantPrediction, ...]:
        """Models that predict the same for every image; empty while the run is not over."""
        return () if self.summary is None else self.summary.constant_predictions

    def exported_kind(self, site: str) -> str | None:
        """Return the kind of model that a site exports: ``personal`` if it has one, otherwise ``global``.

        Args:
            site: Name of the site.

        Returns:
            None if the site has no scored model.
        """
        for kind in ("personal", "global"):
            for metrics in self.scores.get(kind, {}).values():
                if any(site in scores.sites for scores in metrics.values()):
                    return kind
        return None

    def score(self, site: str, metric: str, split: str = "test") -> float | None:
        """Return the final score of the model that a site exports; None if there is none.

        Args:
            site: Name of the site.
            metric: Name of the metric.
            split: ``test`` or ``val``.
        """
        kind = self.exported_kind(site)
        scores = None if kind is None or self.summary is None else self.summary.score(kind, split, metric)
        return None if scores is None else scores.sites.get(site)

    def server_score(self, metric: str, tests: str = "server_test", split: str = "test") -> float | None:
        """Return the global model's final score on the server's data; None if there is none.

        Args:
            metric: Name of the metric.
            tests: ``server_test`` or ``public_test``.
            split: ``test`` or ``val``.
        """
        scores = None if self.summary is None else self.summary.score("global", split, metric)
        if scores is None:
            return None
        return scores.public_test if tests == "public_test" else scores.server_test

    def shared(self, metric: str) -> float | None:
        """Return the score on the server's test set, averaged over the models that the sites export.

        None if sites export a personal model and the run did not have the setting ``shared_test``.

        Args:
            metric: Name of the metric.
        """
        if not self.scores.get("personal"):
            return self.server_score(metric)
        scores = self.scores["personal"].get("shared", {}).get(metric)
        return None if scores is None else scores.mean

    def predictions(self, site: str) -> pd.DataFrame | None:
        """Read the predictions of a site's exported model for its test images; return None without test images."""
        path = self.folder / "sites" / site / PREDICTIONS
        return read_predictions(path) if path.is_file() else None


def read_task_objective(task: TaskIdentity) -> Objective:
    """Return the objective of a run's task from the task's identity in ``run.json``."""
    return Multiclass(task.num_classes or 0) if task.objective is None else read_objective(task.objective)


def common_output_names(runs: Iterable[RunRecord]) -> tuple[str, ...]:
    """Return the names of the network's outputs (`RunRecord.names`) that the runs have in common.

    Runs without names are ignored. The result is empty if the names of two runs differ, or if no run has names.
    """
    known = {run.names for run in runs if run.names}
    return known.pop() if len(known) == 1 else ()


def describe_repetition(seed: int, fold: int | None) -> str:
    """Return a text that identifies one of several runs with equal settings, as ``seed 0`` or ``seed 0, fold 2``."""
    return f"seed {seed}" + ("" if fold is None else f", fold {fold}")


def read_run(folder: PathLike) -> RunRecord:
    """Read a run folder.

    Raises:
        StoreError: If the folder holds no run, or one of its files can't be read.
    """
    place = Path(folder)
    run, summary = read_run_files(place)
    return RunRecord(folder=place, run=run, summary=summary, metrics=read_metrics(place / "metrics.csv"))


def read_predictions(path: PathLike) -> pd.DataFrame:
    """Read a file of a site's predictions (`PREDICTIONS`) as a table with one row for each case."""
    import pandas as pd  # takes half a second to import

    return pd.read_csv(path, dtype=dict.fromkeys(METADATA_KEYS, "object"))


def read_metrics(path: PathLike) -> pd.DataFrame:
    """Return the rows of a metrics file as a table; an empty table if the file does not exist yet.

    Raises:
        StoreError: If the file can't be read.
    """
    import pandas as pd  # takes half a second to import

    path = Path(path)
    types = dict.fromkeys(MetricRow._fields, "object") | {"round": "int64", "value": "float64"}
    if not path.is_file():
        return pd.DataFrame(columns=list(types)).astype(types)
    try:
        table = pd.read_csv(path, dtype=types | {"value": "object"}, keep_default_na=False)
        values = [float(text or "nan") for text in table["value"]]  # pandas' own parser may be off in the last digit
        return table.assign(value=pd.Series(values, dtype="float64"))
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from None


def iterate_metrics(path: Path) -> Iterator[MetricRow]:
    """Yield the rows of a metrics file one by one, without pandas; none if the file does not exist yet.

    Raises:
        StoreError: If the file can't be read.
    """
    if not path.is_file():
        return
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, strict=True):
                yield MetricRow(
                    round=int(row["round"]),
                    site=row["site"],
                    model=row["model"],
                    split=row["split"],
                    moment=row["moment"],
                    metric=row["metric"],
                    value=float(row["value"] or "nan"),
                )
    except (KeyError, TypeError, ValueError, csv.Error, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(
        "unreadable_file",
        f"'{path}' can't be read: {error}. Run the same command again to restore the file.",
        path=path,
    )
