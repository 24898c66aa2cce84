"""Table of the scores of each site's model, on the site's own test images and on all sites' test images.

The table compares groups: a group is the runs of one row of a study (a method with settings), which differ only in seed
and fold.

The local test is the score of a site's model on the site's own test images. The cross-site test is
the mean of the model's scores over the test sets of all sites.

Source: Weng, Cai and Zhou, FedSKD, 2025, tables 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from medfl.utils.formats import plus_minus, table_lines
from medfl_report.groups import Group, same_people
from medfl_report.sections.cross_site import (
    MAX_SITES,
    ScoreMatrix,
    all_sites_share_model,
    cross_site_scores,
    global_mean,
    local_mean,
    mean_defined,
    spread,
)
from medfl_report.statistics import mean_std

MEAN_SITE = "mean"
"""Text in the column ``site`` for the mean over the models of all sites."""

TABLE_NOTES = (
    "Local test: score of each site's model on the site's own test images. Cross-site test: mean "
    "score of each model over the test sets of all sites, with equal weights. ± is the standard deviation (ddof = 1) "
    "over the runs, which differ in seed or fold.",
    "Over sites: standard deviation (ddof = 1) over the sites' models within a run, averaged over the runs.",
    "Undefined scores, such as the AUC of a single class, are left out. If all sites have the same model, it has one "
    "cross-site test. Columns of sites are shown if each site has the same people in all runs.",
)
"""Notes below the tables on the meaning of the numbers."""


def models_table(groups: Sequence[Group], metrics: Sequence[str]) -> pd.DataFrame:
    """Build a table with a row for each metric, group and site's model, and a row for the mean over the models.

    Args:
        groups: Groups of runs. Only runs with the setting ``cross_site_evaluation`` have these scores; other groups
            have no rows.
        metrics: Names of the metrics.

    Returns:
        Table with the columns metric, label, method, site (`MEAN_SITE` for the mean over the models), runs, local,
            local_std (over the runs), local_spread (over the sites within a run), global, global_std, global_spread (of
            a site's model over the test sets; of the mean over the models) and undefined (number of scores that are
            left out). Missing values are NaN.
    """
    rows = []
    for metric in metrics:
        for group in groups:
            tables = [
                (table, all_sites_share_model(run, metric))
                for run in group.runs
                if (table := cross_site_scores(run, metric))
            ]
            if not tables:
                continue
            row_fields = {"metric": metric, "label": group.label, "method": group.method}
            sites = sorted({site for table, _ in tables for site in table}) if len(same_people(group)) == 1 else []
            rows += [row_fields | _site_row(site, tables) for site in sites]
            rows.append(row_fields | _mean_row([table for table, _ in tables], any(single for _, single in tables)))
    return pd.DataFrame(rows)


def models_markdown(table: pd.DataFrame, metric: str) -> str:
    """Return Markdown tables of the local and the cross-site test in one metric.

    Each table has a line for each group and a column for each site.

    Args:
        table: Table from `models_table`.
        metric: Name of the metric.

    Returns:
        Markdown that ends with a line break; empty if no group has such scores.
    """
    rows = table[table["metric"] == metric] if len(table) else table
    if rows.empty:
        return ""
    sites = [site for site in rows["site"].unique() if site != MEAN_SITE]
    sites = sorted(sites) if len(sites) <= MAX_SITES else []
    parts = []
    for name in ("local", "global"):
        lines = [["method", MEAN_SITE, "over sites", *sites]]
        for label, group_rows in rows.groupby("label", sort=False):
            cells = {row["site"]: plus_minus(row[name], row[f"{name}_std"]) for row in group_rows.to_dict("records")}
            mean = group_rows[group_rows["site"] == MEAN_SITE].iloc[0]
            over = plus_minus(mean[f"{name}_spread"], math.nan)
            lines.append([str(label), cells[MEAN_SITE], over, *(cells.get(site, "-") for site in sites)])
        parts.append(f"### {metric}, {name} test of each site's model\n\n{table_lines(lines)}\n")
    return "\n".join([*parts, *(f"- {note}" for note in TABLE_NOTES)]) + "\n"


def _site_row(site: str, run_tables: Sequence[tuple[ScoreMatrix, bool]]) -> dict[str, Any]:
    """Summarize one site's model over the runs. A model that all sites share has no cross-site test of its own."""
    tables = [(table[site], single) for table, single in run_tables if site in table]
    local_scores = [row.get(site, math.nan) for row, _ in tables]
    others = [list(row.values()) for row, single in tables if not single]
    return {
        "site": site,
        "runs": len(tables),
        **_mean_over_runs("local", local_scores),
        "local_spread": math.nan,
        **_mean_over_runs("global", [mean_defined(values) for values in others]),
        "global_spread": mean_defined(map(spread, others)),
        "undefined": sum(math.isnan(value) for row, _ in tables for value in row.values()),
    }


def _mean_row(tables: Sequence[ScoreMatrix], single: bool) -> dict[str, Any]:
    """Summarize the mean over the models."""
    local_scores = [[row.get(site, math.nan) for site, row in table.items()] for table in tables]
    models = [[mean_defined(row.values()) for row in table.values()] for table in tables]
    return {
        "site": MEAN_SITE,
        "runs": len(tables),
        **_mean_over_runs("local", [local_mean(table) for table in tables]),
        "local_spread": mean_defined(map(spread, local_scores)),
        **_mean_over_runs("global", [global_mean(table) for table in tables]),
        "global_spread": math.nan if single else mean_defined(map(spread, models)),
        "undefined": sum(math.isnan(value) for table in tables for row in table.values() for value in row.values()),
    }


def _mean_over_runs(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return mean and standard deviation of the defined values, under the keys `name` and ``<name>_std``."""
    defined = [value for value in values if not math.isnan(value)]
    mean, std = mean_std(defined) if defined else (math.nan, None)
    return {name: mean, f"{name}_std": math.nan if std is None else std}
