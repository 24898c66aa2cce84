"""Reading run folders, for reports and comparisons."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medfl.core.evaluation import Row
from medfl.errors import StoreError
from medfl.objectives import Multiclass, Objective, read_objective
from medfl.runs.facts import read_facts
from medfl.types import FACTS, Meta, PathLike
from medfl.utils.text import plain_name

if TYPE_CHECKING:
    import pandas as pd

PREDICTIONS = "predictions.csv"
"""In a site's bundle, a line for each case of its test split: its row; the target, or what is kept of it
(`Objective.kept_columns`); what the model says (`Objective.columns`); sex, centre, number of the patient if known."""

TEST_CONFIG = Path("configs", "test_cases.json")
"""Configuration in a bundle at home that lets a stock bundle's ``evaluate`` score the site's test cases."""


@dataclass(frozen=True)
class RunRecord:
    """A run folder, read.

    Attributes:
        folder: Where it is.
        run: ``run.json``: identity, settings with their origins, execution, versions, plugins, data.
        summary: ``summary.json``; empty while the run is not over.
        metrics: ``metrics.csv``: round, site, model, split, moment, metric, value.
    """

    folder: Path
    run: Meta
    summary: Meta
    metrics: pd.DataFrame

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.run["identity"]["method"])

    @property
    def objective(self) -> Objective:
        """What was learned."""
        return objective_of(self.run["identity"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.run["identity"]["settings"]["seed"])

    @property
    def data(self) -> str:
        """Identifies the data of all sites; equal for runs that can be compared image by image."""
        return str(self.run["identity"]["data"])

    @property
    def fold(self) -> int | None:
        """The fold that is the sites' test sets, from 0; None where they are no folds."""
        number = self.run.get("data", {}).get("fold")
        return None if number is None else int(number)

    @property
    def folds(self) -> int | None:
        """How many folds there are, whether each has a run or not; None where the test sets are no folds."""
        number = self.run.get("data", {}).get("folds")
        return None if number is None else int(number)

    @property
    def names(self) -> tuple[str, ...]:
        """What each output is for where cases are of no class, by its number; empty where nobody named them."""
        return tuple(plain_name(str(name), str(number)) for number, name in enumerate(self.summary.get("names", ())))

    @property
    def data_folder(self) -> Path | None:
        """Where the data lay when the run was given, seen from where its folder is now; None where it does not say."""
        folder = self.run.get("data", {}).get("folder")
        return None if folder is None else Path(os.path.normpath(self.folder.absolute() / str(folder)))

    @property
    def status(self) -> str:
        """``finished``, ``diverged``, ``incomplete``, or ``running`` for a run without an end (also a killed one)."""
        return str(self.summary.get("status", "running"))

    def taken_home(self, site: str) -> str | None:
        """The kind of model that a site takes home: ``personal`` where it has one, else ``global``; None if neither."""
        for kind in ("personal", "global"):
            for metrics in self.summary.get("scores", {}).get(kind, {}).values():
                if any(site in scores["sites"] for scores in metrics.values()):
                    return kind
        return None

    def score(self, site: str, metric: str, split: str = "test") -> float | None:
        """The final score of the model that a site takes home; None where there is none."""
        scores = self.summary.get("scores", {}).get(self.taken_home(site), {}).get(split, {}).get(metric, {})
        value = scores.get("sites", {}).get(site)
        return None if value is None else float(value)

    def at_server(self, metric: str, tests: str = "global_test", split: str = "test") -> float | None:
        """The global model's final score on what the server holds: ``global_test`` or ``public_test``; None without."""
        value = self.summary.get("scores", {}).get("global", {}).get(split, {}).get(metric, {}).get(tests)
        return None if value is None else float(value)

    def shared(self, metric: str) -> float | None:
        """Mean over the sites of the final score, on the server's test set, of the model that each takes home.

        None where sites take a personal model home and the run did not have the setting ``shared_test``.
        """
        personal = self.summary.get("scores", {}).get("personal")
        if not personal:
            return self.at_server(metric)
        value = personal.get("shared", {}).get(metric, {}).get("mean")
        return None if value is None else float(value)

    def predictions(self, site: str) -> pd.DataFrame | None:
        """What the model that a site takes home says of its test images, in their order; None without test images."""
        path = self.folder / "sites" / site / PREDICTIONS
        return read_predictions(path) if path.is_file() else None


def objective_of(identity: Meta) -> Objective:
    """What a run with this identity learned."""
    task = identity["task"]
    return read_objective(task["objective"]) if "objective" in task else Multiclass(int(task["num_classes"]))


def names_of(runs: Iterable[RunRecord]) -> tuple[str, ...]:
    """What each output is for, as all runs say that say anything of it (`RunRecord.names`); empty if they differ."""
    known = {run.names for run in runs if run.names}
    return known.pop() if len(known) == 1 else ()


def repetition(seed: int, fold: int | None) -> str:
    """Which of several runs of the same settings it is: ``seed 0``, or ``seed 0, fold 2``."""
    return f"seed {seed}" + ("" if fold is None else f", fold {fold}")


def read_run(folder: PathLike) -> RunRecord:
    """Read a run folder.

    Raises:
        StoreError: If the folder holds no run, or one of its files can't be read.
    """
    place = Path(folder)
    return RunRecord(place, *read_facts(place), read_metrics(place / "metrics.csv"))


def read_predictions(path: PathLike) -> pd.DataFrame:
    """The rows of a file of predictions (`PREDICTIONS`)."""
    import pandas as pd  # takes half a second to import

    return pd.read_csv(path, dtype=dict.fromkeys(FACTS, "object"))


def read_metrics(path: PathLike) -> pd.DataFrame:
    """Return the rows of a metrics file as a table; an empty table if the file does not exist yet.

    Raises:
        StoreError: If the file can't be read.
    """
    import pandas as pd  # takes half a second to import

    path = Path(path)
    types = dict.fromkeys(Row._fields, "object") | {"round": "int64", "value": "float64"}
    if not path.is_file():
        return pd.DataFrame(columns=list(types)).astype(types)
    try:
        table = pd.read_csv(path, dtype=types | {"value": "object"}, keep_default_na=False)
        values = [float(text or "nan") for text in table["value"]]  # pandas' own parser may be off in the last digit
        return table.assign(value=pd.Series(values, dtype="float64"))
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from None


def iterate_metrics(path: Path) -> Iterator[Row]:
    """Yield the rows of a metrics file one by one, without pandas; none if the file does not exist yet.

    Raises:
        StoreError: If the file can't be read.
    """
    if not path.is_file():
        return
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, strict=True):
                yield Row(
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
        "unreadable_file", f"'{path}' can't be read: {error}. Run the same command again to restore it.", path=path
    )
