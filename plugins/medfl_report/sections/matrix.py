"""Every site's model on every site's test images: the local test, the global test, and the table behind them.

The local test of a model is its score on the test images of its own site; its global test is the mean of its scores
over the test sets of all sites, each with the same weight and never pooled.

Source: Weng, Cai and Zhou, FedSKD: Aggregation-free Model-heterogeneous Federated Learning using Multi-dimensional
Similarity Knowledge Distillation, arXiv 2503.18981, 2025, section on evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from medfl.engine.runs.records import RunRecord
from medfl.types import Meta
from medfl.utils.formats import count, known, listed
from medfl_report.groups import Group, same_people
from medfl_report.scores import key_metrics, value_over
from medfl_report.section import ReportData, TemplateSection

Table = Mapping[str, Mapping[str, float]]
"""Owner of a model to the site whose test images it sees to the score; NaN where the score is not defined."""

LARGEST = 30
"""With more sites than this a table is no longer readable and is left out."""

DEEPEST = 0.5
"""Opacity of the shade behind the largest score; the smallest has none."""

ONE_MODEL = "the one global model"
"""Stands for all owners where each has the same model."""


@dataclass(frozen=True)
class Cell:
    """A score in the picture of a table.

    Attributes:
        value: Mean over the runs where it is defined; None without any.
        shade: Opacity of the background, in [0, `DEEPEST`].
        own: Whether model and test images are of the same site.
    """

    value: float | None
    shade: float
    own: bool


def cross_table(run: RunRecord, metric: str) -> dict[str, dict[str, float]] | None:
    """The final scores of every site's model on every site's test images.

    Args:
        run: A run; with the setting ``global_test`` it has such scores once it is over.
        metric: Its name.

    Returns:
        Owner to site to score, both in the order of their names, NaN where it is not defined; sites without test images
        are no columns. None where the run has no such scores.
    """
    rows = _rows(run, metric)
    table: dict[str, dict[str, float]] = {}
    sites = sorted({site for _, site, _ in rows})
    for model, site, value in sorted(rows):
        table.setdefault(model.partition("@")[2], dict.fromkeys(sites, math.nan))[site] = value
    return table or None


def one_model(run: RunRecord, metric: str) -> bool:
    """Whether all sites have the same model, so that all rows of the table are the same."""
    return {model.partition("@")[0] for model, _, _ in _rows(run, metric)} == {"global"}


def local_mean(table: Table) -> float:
    """The local test: mean of the scores on the own site's test images; NaN if none is defined."""
    return mean_defined(row.get(owner, math.nan) for owner, row in table.items())


def global_mean(table: Table) -> float:
    """The global test: for each model the mean over the sites where it is defined, then the mean over the models."""
    return mean_defined(mean_defined(row.values()) for row in table.values())


def cross_site_score(run: RunRecord, metric: str) -> tuple[float, float]:
    """The global test of a run, and its standard deviation (ddof = 1) over the models.

    NaN where the run has no such scores; the spread, too, where all sites have the same model.
    """
    table = cross_table(run, metric)
    if table is None:
        return math.nan, math.nan
    return global_mean(table), math.nan if one_model(run, metric) else spread(
        mean_defined(row.values()) for row in table.values()
    )


def undefined(table: Table) -> int:
    """Number of cells without a score, which the means leave out."""
    return sum(math.isnan(value) for row in table.values() for value in row.values())


class MatrixSection(TemplateSection):
    """Every model at every site."""

    template = "matrix.html"

    def content(self, data: ReportData) -> Meta | None:
        """The scores, where every model was scored everywhere."""
        return {"matrix": matrix} if (matrix := matrix_section(data.groups)) else None


def matrix_section(groups: Sequence[Group]) -> Meta | None:
    """The section, by AUC or else the task's first metric; None where no run has such scores."""
    metrics = key_metrics(groups)
    for metric in sorted(metrics, key=lambda name: name != "auc"):
        tables = {
            str(run.folder): table
            for group in groups
            for run in group.runs
            if (table := cross_table(run, metric)) is not None
        }
        if tables:
            return _section(groups, metric, tables)
    return None


def _rows(run: RunRecord, metric: str) -> list[tuple[str, str, float]]:
    """Model with owner, site and score of the run's last round."""
    table = run.metrics
    chosen = table["model"].str.contains("@") & (table["metric"] == metric) & (table["split"] == "test")
    rows = table[chosen & (table["round"] == run.evaluated_round)]
    return list(zip(rows["model"], rows["site"], rows["value"], strict=True))


def spread(values: Iterable[float]) -> float:
    """Standard deviation (ddof = 1) of the values that are defined; NaN with fewer than two."""
    defined = [value for value in values if not math.isnan(value)]
    return stdev(defined) if len(defined) > 1 else math.nan


def mean_defined(values: Iterable[float]) -> float:
    """Mean of the values that are not NaN; NaN without any."""
    defined = [value for value in values if not math.isnan(value)]
    return fmean(defined) if defined else math.nan


# ---- what the page shows


def _section(groups: Sequence[Group], metric: str, tables: Mapping[str, Table]) -> Meta:
    tested = [Group(g.label, tuple(run for run in g.runs if str(run.folder) in tables)) for g in groups]
    averaged = [
        _averaged(f"{group.label}, {name}" if name else group.label, metric, runs, tables)
        for group in tested
        if group.runs
        for name, runs in same_people(group).items()
    ]
    ends = _ends([value for average in averaged for row in average["scores"].values() for value in row.values()])
    drawn = [average | {"rows": _cells(average["scores"], ends)} for average in averaged if _readable(average)]
    rows = [_row(group, tables) for group in tested if group.runs]
    return {
        "metric": metric,
        "ends": ends,
        "rows": rows,
        "several": any(row["runs"] > 1 for row in rows),
        "tables": drawn,
        "sentences": [
            *_untested(groups, tested),
            *_alike(tested, metric),
            *_left_out([average["label"] for average in averaged if not _readable(average)]),
        ],
    }


def _row(group: Group, tables: Mapping[str, Table]) -> Meta:
    """A line of the summary: both tests, as mean and spread over the runs, and what they leave out."""
    own_tables = [tables[str(run.folder)] for run in group.runs]
    return {
        "label": group.label,
        "local": value_over([known(local_mean(table)) for table in own_tables]),
        "global": value_over([known(global_mean(table)) for table in own_tables]),
        "runs": len(own_tables),
        "undefined": sum(undefined(table) for table in own_tables),
        "cells": sum(len(row) for table in own_tables for row in table.values()),
    }


def _averaged(label: str, metric: str, runs: Sequence[RunRecord], tables: Mapping[str, Table]) -> Meta:
    """The table of runs on the same people, averaged cell by cell where it is defined, and the means of its rows.

    The mean of a row is that of the runs' means, as in the global test; the two can differ from the mean over the cells
    where some are not defined in some runs.
    """
    own_tables = [tables[str(run.folder)] for run in runs]
    single = all(one_model(run, metric) for run in runs)
    owners = sorted({owner for table in own_tables for owner in table})
    sites = sorted({site for table in own_tables for row in table.values() for site in row})
    names = {ONE_MODEL: owners[0]} if single else {owner: owner for owner in owners}
    rows = {name: [table[owner] for table in own_tables if owner in table] for name, owner in names.items()}
    return {
        "label": label,
        "runs": len(runs),
        "sites": sites,
        "single": single,
        "scores": {
            name: {site: mean_defined(row.get(site, math.nan) for row in own_rows) for site in sites}
            for name, own_rows in rows.items()
        },
        "means": {
            name: known(mean_defined(mean_defined(row.values()) for row in own_rows)) for name, own_rows in rows.items()
        },
    }


def _cells(scores: Table, ends: tuple[float, float]) -> dict[str, list[Cell]]:
    return {
        owner: [Cell(known(value), _shade(value, ends), owner == site) for site, value in row.items()]
        for owner, row in scores.items()
    }


def _readable(averaged: Meta) -> bool:
    return max(len(averaged["scores"]), len(averaged["sites"])) <= LARGEST


def _untested(groups: Sequence[Group], tested: Sequence[Group]) -> list[str]:
    missing = [group.label for group, some in zip(groups, tested, strict=True) if not some.runs]
    fewer = [
        f"{len(some.runs)} of the {len(group.runs)} runs of {group.label}"
        for group, some in zip(groups, tested, strict=True)
        if 0 < len(some.runs) < len(group.runs)
    ]
    sentences = []
    if missing:
        sentences.append(f"Not tested like this: {listed(missing)}. A run with the setting `global_test` is.")
    if fewer:
        sentences.append(f"Only {listed(fewer)} could be shown: the others are not over, or not tested so.")
    return sentences


def _alike(tested: Sequence[Group], metric: str) -> list[str]:
    names = [group.label for group in tested if any(one_model(run, metric) for run in group.runs)]
    if not names:
        return []
    return [f"In {listed(names)} all sites have the same model, so local and global test are the same number."]


def _left_out(labels: Sequence[str]) -> list[str]:
    if not labels:
        return []
    return [f"The table of {listed(labels)} is left out: more than {count(LARGEST, 'site')} are too many to read."]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest score of all tables, so that shades can be compared between them."""
    defined = [value for value in values if not math.isnan(value)]
    return (min(defined), max(defined)) if defined else (0.0, 0.0)


def _shade(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    return 0.0 if math.isnan(value) or low == high else DEEPEST * (value - low) / (high - low)
