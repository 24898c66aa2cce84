"""Markdown tables of a study with measures over all rounds."""

from __future__ import annotations

from typing import Any

import pandas as pd

from medfl.utils.formats import plus_minus
from medfl_report.forgetting import MEASURES

TABLES = {
    "mean over the rounds": (
        "global_mean",
        "bwt_mean",
        "consistency_global",
        "local_mean",
        "worst_mean",
        "consistency_local",
        "balance",
    ),
    "standard deviation over the rounds, and further measures": (
        "global_std",
        "local_std",
        "personal_change_mean",
        "intervals_global",
        "consistency_global_open",
        "consistency_global_clipped",
        "consistency_local_open",
    ),
    "last round": ("global_final", "bwt_final", "personal_change_final", "local_final"),
}
"""Mapping from the heading of each table to the measures in the table, keys of `medfl_report.forgetting.MEASURES`."""


def rounds_markdown(table: pd.DataFrame) -> str:
    """Return Markdown tables of scores over all rounds, backward transfer and consistency.

    Args:
        table: Table of `medfl_report.forgetting.forgetting_table`.

    Returns:
        Tables and definitions of their columns; empty if no run has such a measure.
    """
    if table.empty:
        return ""
    parts = [part for title, names in TABLES.items() if (part := _table(table, title, names))]
    if not parts:
        return ""
    shown = [name for names in TABLES.values() for name in names if name in set(table["measure"])]
    notes = [f"- {name}: {MEASURES[name]}." for name in shown]
    over = "runs, one for each seed and fold" if any("fold" in seeds for seeds in table["seeds"]) else "seeds"
    notes.append(f"- ± is the standard deviation over the {over} (ddof = 1), not over the rounds.")
    return "\n".join([*parts, *notes]) + "\n"


def _table(table: pd.DataFrame, title: str, names: tuple[str, ...]) -> str:
    """Return the table of some measures with its heading; empty without values."""
    chosen = table[table["measure"].isin(names)]
    if chosen.empty:
        return ""
    shown = [name for name in names if name in set(chosen["measure"])]
    lines = [["method", "seeds", *shown], ["---"] * (len(shown) + 2)]
    for label, rows in chosen.groupby("label", sort=False):
        seeds = max(rows["seeds"], key=len)
        values = {row["measure"]: _cell(row, seeds) for row in rows.to_dict("records")}
        lines.append([str(label), seeds, *(values.get(name, "-") for name in shown)])
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"### {table['metric'].iloc[0]}, {title}\n\n{body}\n"


def _cell(row: dict[Any, Any], seeds: str) -> str:
    """Return mean and standard deviation as text, with the seeds if these are not all seeds of the row."""
    return plus_minus(row["mean"], row["std"]) + ("" if row["seeds"] == seeds else f" (seeds {row['seeds']})")
