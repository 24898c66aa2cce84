"""Section on cross-site evaluation: the score of every site's model on every site's test images.

The local test of a model is its score on the test images of its own site. Its cross-site test is the mean of its scores
over the test sets of all sites, each with the same weight and never pooled.

A group is a set of runs of one method that differ only in seed and fold.

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
from medfl.utils.formats import count, join_words, none_if_nan
from medfl_report.groups import Group, same_people
from medfl_report.scores import key_metrics, value_over
from medfl_report.section import ReportData, TemplateSection

ScoreMatrix = Mapping[str, Mapping[str, float]]
"""Mapping from the site of a model and the site of the test images to the score; NaN if the score is not defined."""

MAX_SITES = 30
"""Largest number of sites of a matrix on the page."""

MAX_OPACITY = 0.5
"""Opacity of the cell with the largest score; the smallest score has opacity 0."""

ONE_MODEL = "the one global model"
"""Name of the only row if all sites have the same model."""


@dataclass(frozen=True)
class MatrixCell:
    """Cell of a score matrix on the page.

    Attributes:
        value: Mean over the runs where the score is defined; None without any.
        shade: Opacity of the background, in [0, `MAX_OPACITY`].
        is_own: True if model and test images are of the same site.
    """

    value: float | None
    shade: float
    is_own: bool


def cross_site_scores(run: RunRecord, metric: str) -> dict[str, dict[str, float]] | None:
    """Return the final scores of every site's model on every site's test images.

    Args:
        run: A run. It has such scores if it is over and has the setting ``cross_site_evaluation``.
        metric: Name of the metric.

    Returns:
        Maps the site of a model and the site of the test images, both sorted by name, to the score, NaN if it is not
        defined. Sites without test images are left out as columns. None if the run has no such scores.
    """
    rows = _rows(run, metric)
    table: dict[str, dict[str, float]] = {}
    sites = sorted({site for _, site, _ in rows})
    for model, site, value in sorted(rows):
        table.setdefault(model.partition("@")[2], dict.fromkeys(sites, math.nan))[site] = value
    return table or None


def all_sites_share_model(run: RunRecord, metric: str) -> bool:
    """Return whether all sites have the same model, so that all rows of the matrix are equal."""
    return {model.partition("@")[0] for model, _, _ in _rows(run, metric)} == {"global"}


def local_mean(table: ScoreMatrix) -> float:
    """Return the local test: mean of the sites' models' scores on their own site's test images; NaN without scores."""
    return mean_defined(row.get(owner, math.nan) for owner, row in table.items())


def global_mean(table: ScoreMatrix) -> float:
    """Return the cross-site test: the mean over the sites, then over the models; NaN without scores."""
    return mean_defined(mean_defined(row.values()) for row in table.values())


def cross_site_score(run: RunRecord, metric: str) -> tuple[float, float]:
    """Return the cross-site test of a run, and its standard deviation (ddof = 1) over the models.

    Both are NaN without such scores. The standard deviation is also NaN if all sites have the same model.
    """
    table = cross_site_scores(run, metric)
    if table is None:
        return math.nan, math.nan
    return global_mean(table), math.nan if all_sites_share_model(run, metric) else spread(
        mean_defined(row.values()) for row in table.values()
    )


def count_undefined(table: ScoreMatrix) -> int:
    """Return the number of undefined scores, which the means leave out."""
    return sum(math.isnan(value) for row in table.values() for value in row.values())


class CrossSiteSection(TemplateSection):
    """Section of a report: cross-site evaluation."""

    template = "matrix.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without cross-site evaluation or if all sites have the same model.

        They contain the score matrices.
        """
        matrix = matrix_section(data.groups)
        return None if matrix is None or matrix["all_one_model"] else {"matrix": matrix}


def matrix_section(groups: Sequence[Group]) -> Meta | None:
    """Return the variables of the template, in AUC or else the first common metric; None without cross-site scores."""
    metrics = key_metrics(groups)
    for metric in sorted(metrics, key=lambda name: name != "auc"):
        tables = {
            str(run.folder): table
            for group in groups
            for run in group.runs
            if (table := cross_site_scores(run, metric)) is not None
        }
        if tables:
            return _section(groups, metric, tables)
    return None


def _rows(run: RunRecord, metric: str) -> list[tuple[str, str, float]]:
    """Return (kind of model@site of the model, site of the test images, score) of the last evaluated round."""
    table = run.metrics
    chosen = table["model"].str.contains("@") & (table["metric"] == metric) & (table["split"] == "test")
    rows = table[chosen & (table["round"] == run.evaluated_round)]
    return list(zip(rows["model"], rows["site"], rows["value"], strict=True))


def spread(values: Iterable[float]) -> float:
    """Return the standard deviation (ddof = 1) of the values that are not NaN; NaN for fewer than two."""
    defined = [value for value in values if not math.isnan(value)]
    return stdev(defined) if len(defined) > 1 else math.nan


def mean_defined(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN without any."""
    defined = [value for value in values if not math.isnan(value)]
    return fmean(defined) if defined else math.nan


# ---- what the page shows


def _section(groups: Sequence[Group], metric: str, tables: Mapping[str, ScoreMatrix]) -> Meta:
    tested = [Group(g.label, tuple(run for run in g.runs if str(run.folder) in tables)) for g in groups]
    averaged = [
        _averaged(f"{group.label}, {name}" if name else group.label, metric, runs, tables)
        for group in tested
        if group.runs
        for name, runs in same_people(group).items()
    ]
    ends = _ends([value for average in averaged for row in average["scores"].values() for value in row.values()])
    drawn = [average | {"rows": _cells(average["scores"], ends)} for average in averaged if _is_readable(average)]
    rows = [_row(group, tables) for group in tested if group.runs]
    return {
        "metric": metric,
        "all_one_model": all(all_sites_share_model(run, metric) for group in tested for run in group.runs),
        "ends": ends,
        "rows": rows,
        "several": any(row["runs"] > 1 for row in rows),
        "tables": drawn,
        "sentences": [
            *_untested(groups, tested),
            *_alike(tested, metric),
            *_left_out([average["label"] for average in averaged if not _is_readable(average)]),
        ],
    }


def _row(group: Group, tables: Mapping[str, ScoreMatrix]) -> Meta:
    """Return a row of the summary: both tests over the runs, and the number of undefined scores."""
    own_tables = [tables[str(run.folder)] for run in group.runs]
    return {
        "label": group.label,
        "local": value_over([none_if_nan(local_mean(table)) for table in own_tables]),
        "global": value_over([none_if_nan(global_mean(table)) for table in own_tables]),
        "runs": len(own_tables),
        "undefined": sum(count_undefined(table) for table in own_tables),
        "cells": sum(len(row) for table in own_tables for row in table.values()),
    }


def _averaged(label: str, metric: str, runs: Sequence[RunRecord], tables: Mapping[str, ScoreMatrix]) -> Meta:
    """Return the matrix averaged over runs on the same people, and the means of its rows.

    The mean of a row is the mean of the runs' means, as in the cross-site test. It can differ from the mean over the
    cells if some scores are not defined in some runs.
    """
    own_tables = [tables[str(run.folder)] for run in runs]
    single = all(all_sites_share_model(run, metric) for run in runs)
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
            name: none_if_nan(mean_defined(mean_defined(row.values()) for row in own_rows))
            for name, own_rows in rows.items()
        },
    }


def _cells(scores: ScoreMatrix, ends: tuple[float, float]) -> dict[str, list[MatrixCell]]:
    return {
        owner: [MatrixCell(none_if_nan(value), _shade(value, ends), owner == site) for site, value in row.items()]
        for owner, row in scores.items()
    }


def _is_readable(averaged: Meta) -> bool:
    return max(len(averaged["scores"]), len(averaged["sites"])) <= MAX_SITES


def _untested(groups: Sequence[Group], tested: Sequence[Group]) -> list[str]:
    missing = [group.label for group, some in zip(groups, tested, strict=True) if not some.runs]
    fewer = [
        f"{len(some.runs)} of the {len(group.runs)} runs of {group.label}"
        for group, some in zip(groups, tested, strict=True)
        if 0 < len(some.runs) < len(group.runs)
    ]
    sentences = []
    if missing:
        sentences.append(
            f"No cross-site evaluation: {join_words(missing)}. It needs the setting `cross_site_evaluation`."
        )
    if fewer:
        sentences.append(
            f"Only {join_words(fewer)} are shown: the others are not over or have no cross-site evaluation."
        )
    return sentences


def _alike(tested: Sequence[Group], metric: str) -> list[str]:
    names = [group.label for group in tested if any(all_sites_share_model(run, metric) for run in group.runs)]
    if not names:
        return []
    return [f"In {join_words(names)} all sites have the same model, so local and cross-site test are equal."]


def _left_out(labels: Sequence[str]) -> list[str]:
    if not labels:
        return []
    return [f"The table of {join_words(labels)} is left out: more than {count(MAX_SITES, 'site')}."]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest score of all matrices, so that they have the same scale of shades."""
    defined = [value for value in values if not math.isnan(value)]
    return (min(defined), max(defined)) if defined else (0.0, 0.0)


def _shade(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    return 0.0 if math.isnan(value) or low == high else MAX_OPACITY * (value - low) / (high - low)
