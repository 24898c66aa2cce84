"""Tables of a study's scores at sites that were left out of the training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.records.evaluation import ScoreEstimate
from medfl.utils.formats import MISSING, table_lines
from medfl_report.evaluation.external_scores import ExternalRow, external_rows

MEAN_SITE = "mean"
"""Text in the column ``site`` for the mean over the sites."""

EXTERNAL_COLUMNS = ["metric", "label", "model", "site", "runs", "value", "low", "high", "images", "patients"]
"""Columns of the table of external scores, ``<data>-external.csv``."""

TABLE_NOTES = (
    "Each column is the score at a site of models that trained without it, with its 95 % confidence interval over the "
    "patients of the site; if each seed draws its own partition, it is Student's t over the seeds. The mean has the "
    "same weight for each site, and its interval takes the sites as independent.",
    "A method without a global model has the mean score of the other sites' models.",
)
"""Notes below the tables on the meaning of the numbers."""


def external_table(runs_by_label: Mapping[str, Sequence[RunRecord]], metrics: Sequence[str]) -> pd.DataFrame:
    """Return a table with a line for each metric, row and site, and a line for the mean over the sites.

    Args:
        runs_by_label: Maps each row to its runs without a site.
        metrics: Names of the metrics; empty means the metrics of the runs' task.

    Returns:
        Table with `EXTERNAL_COLUMNS`. Missing values are empty.
    """
    rows = external_rows(runs_by_label)
    names = list(metrics) or [name for runs in runs_by_label.values() for name in runs[0].task_metrics[:1]][:1]
    lines = [line for metric in names for row in rows for line in _lines(row, metric)]
    table = pd.DataFrame(lines, columns=EXTERNAL_COLUMNS)
    return table.astype(dict.fromkeys(("runs", "images", "patients"), "Int64"))


def _lines(row: ExternalRow, metric: str) -> list[dict[str, Any]]:
    """Return the lines of a row in one metric: the mean, then the sites."""
    about = {"metric": metric, "label": row.label, "model": row.model}
    estimates = row.by_site(metric)
    lines: list[dict[str, Any]] = [about | {"site": MEAN_SITE} | _numbers(row.mean(metric))]
    for part in row.sites:
        counts = {"runs": len(part.runs), "images": part.images, "patients": part.patients}
        lines.append(about | {"site": part.site} | counts | _numbers(estimates[part.site]))
    return lines


def _numbers(estimate: ScoreEstimate | None) -> dict[str, float]:
    """Return the numbers of an estimate; NaN if it is not defined."""
    if estimate is None:
        return dict.fromkeys(("value", "low", "high"), math.nan)
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def external_markdown(table: pd.DataFrame, unfinished: Sequence[str], others: Sequence[str] = ()) -> str:
    """Return the tables of external scores in Markdown, with a line for each row and a column for each site.

    Args:
        table: Table from `external_table`.
        unfinished: Lines about runs and evaluations that are not finished.
        others: Sentences on evaluations that are not external.

    Returns:
        Markdown that ends with a line break; empty if there is nothing to show.
    """
    parts = []
    for metric, rows in table.groupby("metric", sort=False):
        sites = [MEAN_SITE, *sorted(set(rows["site"]) - {MEAN_SITE})]
        lines = [["method", *sites]]
        for label, of_label in rows.groupby("label", sort=False):
            cells = {line["site"]: _cell(line) for line in of_label.to_dict("records")}
            lines.append([str(label), *(cells.get(site, MISSING) for site in sites)])
        parts.append(f"### {metric} at sites that did not train\n\n{table_lines(lines)}\n")
    notes = [*(TABLE_NOTES if parts else ()), *others]
    lists = [f"- {line}" for line in (*notes, *unfinished)]
    return "\n".join([*parts, *lists]) + "\n" if parts or lists else ""


def _cell(line: Mapping[Any, Any]) -> str:
    """Return a score with its interval as text."""
    if math.isnan(line["value"]):
        return MISSING
    interval = "" if math.isnan(line["low"]) else f" [{line['low']:.3f}, {line['high']:.3f}]"
    return f"{line['value']:.3f}{interval}"
