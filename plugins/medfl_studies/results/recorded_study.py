"""Read the raw results of a study as run records, which every table and test of `medfl_report` accepts.

Each row of a study is a method with settings; a row has one run for each data set, seed and fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from medfl.data.sites import PATIENT_COLUMN
from medfl.engine.runs.records import RunRecord, read_metrics
from medfl.metrics import worst
from medfl.objectives.objective import GROUP_COLUMN
from medfl.records.summary import MetricScores
from medfl.types import GLOBAL, METADATA_KEYS, PUBLIC
from medfl.utils.formats import none_if_nan
from medfl_report.groups import Group
from medfl_report.patient_tests import PredictionSets, sets_reader
from medfl_report.predictions import read_prediction_sets
from medfl_studies.attacks import RESULT_KEY, RUN_KEY, VALUE_COLUMNS
from medfl_studies.jobs import RunJob
from medfl_studies.records.raw_results import KeptRun, RawResults, UnfinishedRun
from medfl_studies.results.compressed_tables import read_table
from medfl_studies.results.trials_table import TRIAL_COLUMNS, TRIALS
from medfl_studies.schema import slug, split_name

SCORES = "scores.csv.gz"
"""Name of the file with the final scores of all runs."""

SCORE_COLUMNS = (*RUN_KEY, "site", "model", "exported", "split", "metric", "value")
"""Columns of the table of scores.

`exported` is True for the kind of model (``global`` or ``personal``) that the site exports. The names in
`SERVER_TEST_SETS` stand in the column `site` for the server's test sets. `value` is empty if a score is not defined.
"""

ROUNDS = "rounds.csv.gz"
"""Name of the file with the scores on validation and test images and the seconds of work of all runs, by round.

Its columns are `RUN_KEY` and those of a run's ``metrics.csv``. Raw results of earlier versions lack the file.
"""

ATTACKS = "attacks.csv.gz"
"""Name of the file with the results of all attacks, with `VALUE_COLUMNS`; a study without attacks has none."""

KEPT_SPLITS = ("val", "test", "shared")
"""Splits whose scores are kept by round."""

WORK = "work_seconds"
"""Cost that is kept by round: it tells which sites took part, and how long they worked."""

SERVER_TEST_SETS = ("server_test", "public_test")
"""Fields of `MetricScores` that belong to no site."""

TEXT_COLUMNS = (*RUN_KEY[:2], "site", "model", "split", "moment", "metric", *METADATA_KEYS, GROUP_COLUMN)
"""Columns with text."""

KNOWN_FOR_SOME = (PATIENT_COLUMN, GROUP_COLUMN, *METADATA_KEYS)
"""Columns of predictions that some runs have and others lack."""


@dataclass(frozen=True)
class RecordedRun(RunRecord):
    """A run whose predictions are in the raw results of its study.

    Its metrics are those of `round_rows`: no losses, and no costs but the seconds of work. They are empty if the raw
    results have no scores by round.

    Attributes:
        tables: Maps each site with predictions to their table, and ``global`` to the predictions of the global model
            for the server's test images.
    """

    tables: Mapping[str, pd.DataFrame]

    def predictions(self, site: str) -> pd.DataFrame | None:
        """Return the predictions of a site's exported model for its test images; None without predictions."""
        return self.tables.get(site)


@dataclass(frozen=True)
class ServerRun(RunRecord):
    """A run from the server's view: its only test images are the server's, and its only model is the global one.

    Every test of `medfl_report` that compares runs at their sites then compares the global models.

    Attributes:
        table: Predictions of the global model for the server's test images.
    """

    table: pd.DataFrame

    @property
    def sites(self) -> tuple[str, ...]:
        """The name ``global`` alone."""
        return (GLOBAL,)

    @property
    def data(self) -> str:
        """One name for all runs, because the server has the same test images in all seeds. Tests compare the images."""
        return SERVER_TEST_SETS[0]

    def score(self, site: str, metric: str, split: str = "test") -> float | None:
        """Return the final score of the global model on the server's test images; None if there is none."""
        return self.server_score(metric, split=split) if site == GLOBAL else None

    def predictions(self, site: str) -> pd.DataFrame | None:
        """Return the predictions of the global model for the server's test images."""
        return self.table if site == GLOBAL else None


def server_run(run: RunRecord) -> ServerRun | None:
    """Return a run from the server's view; None without predictions for the server's test images."""
    table = run.predictions(GLOBAL)
    if table is None:
        return None
    return ServerRun(folder=run.folder / GLOBAL, run=run.run, summary=run.summary, metrics=run.metrics, table=table)


@dataclass(frozen=True)
class StudyResults:
    """Raw results of a study.

    Attributes:
        folder: Folder of the raw results.
        raw: Settings, identity and status of every run.
        runs: Runs with scores and predictions, in the order of `raw.runs`.
        trials: Trials of the searches that chose the settings, with `TRIAL_COLUMNS`; empty without a search.
        attacks: Results of the attacks on the runs, with `VALUE_COLUMNS`; empty without attacks.
    """

    folder: Path
    raw: RawResults
    runs: tuple[RecordedRun, ...]
    trials: pd.DataFrame
    attacks: pd.DataFrame

    @cached_property
    def read_sets(self) -> Callable[[RunRecord], PredictionSets]:
        """Function that returns the test sets of a run, and reads each run once."""
        return sets_reader()

    def trial_seconds(self, row: str) -> float:
        """Return the time of training and evaluation in all trials of a row, summed over the sites."""
        return float(self.trials.loc[self.trials["row"] == row, "seconds"].sum())

    @cached_property
    def _groups(self) -> dict[str, dict[str, Group]]:
        """Maps each data set and row to the runs of the row."""
        groups: dict[str, dict[str, Group]] = {}
        for data in self.raw.data:
            for row in self.raw.rows:
                pairs = zip(self.raw.runs, self.runs, strict=True)
                runs = tuple(run for kept, run in pairs if (kept.data, kept.row) == (data, row))
                if runs:
                    groups.setdefault(data, {})[row] = Group(row, runs)
        return groups

    def groups(self, data: str) -> dict[str, Group]:
        """Return the rows with runs on a data set, in the order of the study file, by name."""
        return self._groups.get(data, {})


@dataclass(frozen=True)
class ScoreComparison:
    """A recorded score, and the score of the recorded predictions.

    Attributes:
        place: Data set, row, seed, fold and site of the score, as text.
        site: Name of the site.
        metric: Name of the metric.
        recorded: Recorded score.
        computed: Score of the predictions.
    """

    place: str
    site: str
    metric: str
    recorded: float
    computed: float

    @property
    def error(self) -> float:
        """Absolute difference; infinite if only one of the scores is defined."""
        difference = abs(self.recorded - self.computed)
        return math.inf if math.isnan(difference) else difference


def read_results(folder: Path) -> StudyResults:
    """Read the raw results of a study.

    Args:
        folder: Folder that `medfl_studies.results.collect.collect_study` wrote.

    Raises:
        StoreError: If a file is missing or can't be read.
    """
    raw = RawResults.read(folder / RawResults.NAME)
    scores = _by_run(read_table(folder / SCORES, TEXT_COLUMNS))
    predictions: dict[tuple[object, ...], pd.DataFrame] = {}
    for data in raw.data.values():
        if data.predictions is not None:
            predictions |= _by_run(read_table(folder / data.predictions, TEXT_COLUMNS))
    rounds = _by_run(_read_rounds(folder / ROUNDS)) if (folder / ROUNDS).is_file() else {}
    runs = tuple(
        _recorded_run(folder, kept, scores[key], predictions.get(key), rounds.get(key))
        for kept in raw.runs
        for key in [(kept.data, kept.row, kept.seed, -1 if kept.fold is None else kept.fold)]
    )
    trials = pd.DataFrame(columns=list(TRIAL_COLUMNS))
    if (folder / TRIALS).is_file():
        trials = read_table(folder / TRIALS, ("split", "row", "status", "parameters"))
        trials = trials.reindex(columns=list(TRIAL_COLUMNS)).astype({"sites": "Int64"})
    attacks = pd.DataFrame(columns=list(VALUE_COLUMNS))
    if (folder / ATTACKS).is_file():
        attacks = read_table(folder / ATTACKS, ("data", "row", "kind", *RESULT_KEY, "measure"))
        attacks = attacks.astype({"fold": "Int64"})
    return StudyResults(folder, raw, runs, trials, attacks)


def compare_scores(kept: KeptRun, run: RunRecord, test_sets: PredictionSets) -> Iterator[ScoreComparison]:
    """Yield each score of an exported model on test images with the score that the run's predictions give.

    Scores of the global model on the server's test images come last, if the run has predictions for them.

    Args:
        kept: The run in the raw results.
        run: Scores of the run.
        test_sets: Test sets of the sites, with the predictions of the run.
    """
    parts: list[tuple[RunRecord, PredictionSets]] = [(run, test_sets)]
    if (server := server_run(run)) is not None:
        parts.append((server, read_prediction_sets(server)))
    for part, sets in parts:
        for site, test_set in sets.items():
            for metric in part.task_metrics:
                recorded, computed = part.score(site, metric), test_set.score(metric)
                if recorded is not None or not math.isnan(computed):
                    place = f"{kept.data}, {kept.row}, {run_name(kept)}, {site}"
                    yield ScoreComparison(place, site, metric, math.nan if recorded is None else recorded, computed)


def compare_rounds(kept: KeptRun, run: RunRecord) -> Iterator[ScoreComparison]:
    """Yield each score of the last evaluated round with the final score of the same model on the same test images.

    Args:
        kept: The run in the raw results.
        run: Scores of the run, and its metrics by round.
    """
    table = run.metrics
    last = table[(table["round"] == run.evaluated_round) & (table["moment"] == "aggregated")]
    last = last[last["split"].isin(KEPT_SPLITS) & ~last["model"].str.contains("@")]
    names = ["site", "model", "split", "metric"]
    for (site, model, split, metric), value in zip(last[names].astype(str).to_numpy(), last["value"], strict=True):
        scores = run.scores.get(model, {}).get(split, {}).get(metric)
        final = None if scores is None else _score_at(scores, site)
        place = f"{kept.data}, {kept.row}, {run_name(kept)}, {site}, round {run.evaluated_round}"
        if final is not None or not math.isnan(value):
            yield ScoreComparison(place, site, metric, float(value), math.nan if final is None else final)


def _score_at(scores: MetricScores, site: str) -> float | None:
    """Return the final score at a site, or on the server's or the public test set."""
    return {GLOBAL: scores.server_test, PUBLIC: scores.public_test}.get(site, scores.sites.get(site))


def run_name(run: KeptRun) -> str:
    """Return the name of a run's folder within its row."""
    return split_name(run.seed, run.fold)


RunKey = tuple[str, str, int, int | None]
"""Data set, row, seed and fold of a run."""


def run_key(run: RunJob | KeptRun | UnfinishedRun) -> RunKey:
    """Return data set, row, seed and fold of a run."""
    return run.data, run.row, run.seed, run.fold


def score_rows(kept: KeptRun, run: RunRecord) -> Iterator[dict[str, object]]:
    """Yield the final scores of a run, also undefined ones, as rows with `SCORE_COLUMNS`."""
    about = {"data": kept.data, "row": kept.row, "seed": kept.seed, "fold": kept.fold}
    for model, splits in sorted(run.scores.items()):
        for split, metrics in sorted(splits.items()):
            for metric, scores in sorted(metrics.items()):
                common = about | {"model": model, "split": split, "metric": metric}
                for site, value in sorted(scores.sites.items()):
                    yield common | {"site": site, "exported": run.exported_kind(site) == model, "value": value}
                for place in SERVER_TEST_SETS:
                    if (value := getattr(scores, place)) is not None:
                        yield common | {"site": place, "exported": model == "global", "value": value}


def round_rows(kept: KeptRun, run: RunRecord) -> pd.DataFrame:
    """Return the scores of a run on validation and test images, and its seconds of work, by round, in their order.

    They determine every measure and curve of scores, such as those of `medfl_report.forgetting`. Losses and other costs
    are left out. Seconds are rounded to hundredths.
    """
    table = run.metrics
    table = table.assign(value=table["value"].where(table["metric"] != WORK, table["value"].round(2)))
    rows = table[table["split"].isin(KEPT_SPLITS) | ((table["split"] == "train") & (table["metric"] == WORK))]
    about = pd.DataFrame({"data": kept.data, "row": kept.row, "seed": kept.seed, "fold": kept.fold}, index=rows.index)
    return about.astype({"fold": "Int64"}).join(rows)


def _read_rounds(path: Path) -> pd.DataFrame:
    """Return the table of all runs' scores by round, with the exact values."""
    table = read_table(path, (*TEXT_COLUMNS, "value"))
    return table.assign(value=[float(text or "nan") for text in table["value"]])


def _by_run(table: pd.DataFrame) -> dict[tuple[object, ...], pd.DataFrame]:
    """Split a table by the columns `RUN_KEY`; the fold of a run without folds is -1."""
    folds = table["fold"].fillna(-1).astype("int64")
    return dict(iter(table.assign(fold=folds).groupby(list(RUN_KEY), sort=False)))


def _recorded_run(
    folder: Path,
    kept: KeptRun,
    scores: pd.DataFrame,
    predictions: pd.DataFrame | None,
    rounds: pd.DataFrame | None,
) -> RecordedRun:
    """Return the record of a run."""
    place = folder / slug(kept.data) / slug(kept.row) / run_name(kept)
    summary = kept.summary.model_copy(update={"scores": _nested_scores(scores)})
    tables = {} if predictions is None else dict(_site_tables(predictions))
    metrics = read_metrics(place) if rounds is None else rounds.drop(columns=list(RUN_KEY)).reset_index(drop=True)
    return RecordedRun(folder=place, run=kept.run, summary=summary, metrics=metrics, tables=tables)


def _nested_scores(table: pd.DataFrame) -> dict[str, dict[str, dict[str, MetricScores]]]:
    """Return the scores of a run by model, split and metric."""
    nested: dict[str, dict[str, dict[str, MetricScores]]] = {}
    for key, lines in table.groupby(["model", "split", "metric"]):
        model, split, metric = map(str, key)
        values = dict(zip(lines["site"], lines["value"].astype(float), strict=True))
        held = {name: none_if_nan(values.pop(name)) for name in SERVER_TEST_SETS if name in values}
        defined = [value for value in values.values() if not math.isnan(value)]
        nested.setdefault(model, {}).setdefault(split, {})[metric] = MetricScores(
            mean=sum(defined) / len(defined) if defined else None,
            worst=worst(metric, defined) if defined else None,
            sites={site: none_if_nan(value) for site, value in values.items()},
            **held,
        )
    return nested


def _site_tables(predictions: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each site with its predictions, in the columns of a site's file of predictions."""
    content = predictions.drop(columns=[*RUN_KEY, "site", "split", "model"]).rename(columns={"image": "row"})
    for site, lines in content.groupby(predictions["site"], sort=False):
        unknown = [name for name in KNOWN_FOR_SOME if name in lines and lines[name].isin([math.nan, ""]).all()]
        yield str(site), lines.drop(columns=unknown).reset_index(drop=True)
