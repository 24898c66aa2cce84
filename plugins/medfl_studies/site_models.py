"""Each site's model on its own and on all sites' test images, in one table for all methods: means and spreads.

Local and global test are those of `medfl_report.sections.matrix`.

Source: Weng, Cai and Zhou, FedSKD, 2025, tables 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from medfl.utils.formats import plus_minus, table_lines
from medfl_report.groups import Group, same_people
from medfl_report.sections.matrix import (
    LARGEST,
    Table,
    cross_table,
    global_mean,
    local_mean,
    mean_defined,
    one_model,
    spread,
)
from medfl_report.statistics import mean_std

MEAN = "mean"
"""Stands for a site in the rows of the mean over all models."""

NOTES = (
    "Local test: each site's model on its own test images. Global test: the mean of each model over the test images of "
    "all sites, each site with the same weight. ± is the standard deviation (ddof = 1) over the runs, which differ in "
    "seed or fold.",
    "Over sites: the standard deviation (ddof = 1) over the sites' models within a run, as a mean over the runs.",
    "Scores that are not defined, such as the AUC of one class, are left out. Where all sites have the same model, it "
    "has one global test. Columns of sites are there where a site's name stands for the same people in all runs.",
)
"""What the numbers mean."""


def models_table(groups: Sequence[Group], metrics: Sequence[str]) -> pd.DataFrame:
    """A row for each metric, group and site's model, and one for their mean.

    Args:
        groups: Those without such scores, which a run with the setting ``global_test`` has, have no rows.
        metrics: Their names.

    Returns:
        Columns: metric, label, method, site (`MEAN` for the mean over the models), runs, local, local_std (over the
        runs), local_spread (over the sites within a run), global, global_std and global_spread (of a site's model over
        the test sets, of the mean over the models), undefined (scores that are left out). What is not there is NaN.
    """
    rows = []
    for metric in metrics:
        for group in groups:
            tables = [(table, one_model(run, metric)) for run in group.runs if (table := cross_table(run, metric))]
            if not tables:
                continue
            facts = {"metric": metric, "label": group.label, "method": group.method}
            sites = sorted({site for table, _ in tables for site in table}) if len(same_people(group)) == 1 else []
            rows += [facts | _site_row(site, tables) for site in sites]
            rows.append(facts | _mean_row([table for table, _ in tables], any(single for _, single in tables)))
    return pd.DataFrame(rows)


def models_markdown(table: pd.DataFrame, metric: str) -> str:
    """The local and the global test by one metric, a line for each group and a column for each site.

    Args:
        table: From `models_table`.
        metric: Its name.

    Returns:
        Text that ends with a line break; empty if no group has such scores.
    """
    rows = table[table["metric"] == metric] if len(table) else table
    if rows.empty:
        return ""
    sites = [site for site in rows["site"].unique() if site != MEAN]
    sites = sorted(sites) if len(sites) <= LARGEST else []
    parts = []
    for name in ("local", "global"):
        lines = [["method", MEAN, "over sites", *sites]]
        for label, group_rows in rows.groupby("label", sort=False):
            cells = {row["site"]: plus_minus(row[name], row[f"{name}_std"]) for row in group_rows.to_dict("records")}
            mean = group_rows[group_rows["site"] == MEAN].iloc[0]
            over = plus_minus(mean[f"{name}_spread"], math.nan)
            lines.append([str(label), cells[MEAN], over, *(cells.get(site, "-") for site in sites)])
        parts.append(f"### {metric}, {name} test of each site's model\n\n{table_lines(lines)}\n")
    return "\n".join([*parts, *(f"- {note}" for note in NOTES)]) + "\n"


def _site_row(site: str, run_tables: Sequence[tuple[Table, bool]]) -> dict[str, Any]:
    """One site's model over the runs; a model that all sites share has no global test of its own."""
    tables = [(table[site], single) for table, single in run_tables if site in table]
    own = [row.get(site, math.nan) for row, _ in tables]
    others = [list(row.values()) for row, single in tables if not single]
    return {
        "site": site,
        "runs": len(tables),
        **_over_runs("local", own),
        "local_spread": math.nan,
        **_over_runs("global", [mean_defined(values) for values in others]),
        "global_spread": mean_defined(map(spread, others)),
        "undefined": sum(math.isnan(value) for row, _ in tables for value in row.values()),
    }


def _mean_row(tables: Sequence[Table], single: bool) -> dict[str, Any]:
    """The mean over the models."""
    own = [[row.get(site, math.nan) for site, row in table.items()] for table in tables]
    models = [[mean_defined(row.values()) for row in table.values()] for table in tables]
    return {
        "site": MEAN,
        "runs": len(tables),
        **_over_runs("local", [local_mean(table) for table in tables]),
        "local_spread": mean_defined(map(spread, own)),
        **_over_runs("global", [global_mean(table) for table in tables]),
        "global_spread": math.nan if single else mean_defined(map(spread, models)),
        "undefined": sum(math.isnan(value) for table in tables for row in table.values() for value in row.values()),
    }


def _over_runs(name: str, values: Sequence[float]) -> dict[str, float]:
    defined = [value for value in values if not math.isnan(value)]
    mean, std = mean_std(defined) if defined else (math.nan, None)
    return {name: mean, f"{name}_std": math.nan if std is None else std}
