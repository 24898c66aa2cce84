"""Curves over the rounds, from the metrics of runs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from medfl.data.sites import GLOBAL
from medfl.report.figures import Curve
from medfl.report.groups import Group


def score_curve(group: Group, metric: str, band: bool) -> Curve | None:
    """Mean over sites (and seeds) of a test score after each round, with a band from the worst to the best.

    It is the score of the model that sites take home: the personal one where there is one, else the global one.

    Returns:
        None if fewer than two rounds were scored.
    """
    tables = []
    for run in group.runs:
        table = run.metrics
        rows = table[
            (table["moment"] == "aggregated")
            & (table["split"] == "test")
            & (table["metric"] == metric)
            & (table["site"] != GLOBAL)
        ]
        kind = "personal" if (rows["model"] == "personal").any() else "global"
        tables.append(rows[rows["model"] == kind])
    return _curve(group.label, pd.concat(tables), band)


def global_curve(group: Group, metric: str) -> Curve | None:
    """Score on the server's test set after each round; None if fewer than two rounds were scored."""
    rows = pd.concat([run.metrics for run in group.runs])
    rows = rows[(rows["site"] == GLOBAL) & (rows["model"] == "global") & (rows["moment"] == "aggregated")]
    return _curve(group.label, rows[(rows["split"] == "test") & (rows["metric"] == metric)], band=False)


def loss_curve(group: Group, band: bool) -> Curve | None:
    """Mean training loss of the sites that took part in each round; None if fewer than two rounds have one."""
    rows = pd.concat([run.metrics for run in group.runs])
    return _curve(group.label, rows[(rows["split"] == "train") & (rows["metric"] == "loss")], band)


def _curve(name: str, rows: pd.DataFrame, band: bool) -> Curve | None:
    finite = rows[np.isfinite(rows["value"].to_numpy(dtype=float))]
    if finite["round"].nunique() < 2:
        return None
    found = finite.groupby("round")["value"].agg(["mean", "min", "max"])
    mean, low, high = (found[column].to_numpy() for column in ("mean", "min", "max"))
    return Curve(name, found.index.to_numpy(), mean, low if band else (), high if band else ())
