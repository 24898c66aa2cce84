"""Convert rows of ``metrics.csv`` to named points for MLflow."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from medfl.types import GLOBAL

MEAN_SITE = "mean"
"""Name in place of a site's name for the mean of a metric over the sites at which the metric is defined."""


class MetricPoint(NamedTuple):
    """One value of a metric.

    Attributes:
        name: ``model/split/metric/site``, for example ``global/test/accuracy/site-01``. For scores directly after a
            site's training, ``trained`` precedes the split.
        step: Round of the value, from 1.
        value: A finite number.
    """

    name: str
    step: int
    value: float


def to_points(table: pd.DataFrame) -> list[MetricPoint]:
    """Return a point for each value, and one for each mean over the sites.

    Undefined (NaN) and infinite values, as after a diverged training, have no point. The server's test set, ``global``,
    is not included in the mean.

    Args:
        table: Rows of ``metrics.csv``.

    Returns:
        Points in the order of the rounds.
    """
    table = table[np.isfinite(table["value"].to_numpy(dtype=float))]
    groups = ["round", "model", "split", "moment", "metric"]
    means = table[table["site"] != GLOBAL].groupby(groups, as_index=False)["value"].mean().assign(site=MEAN_SITE)
    both = pd.concat([table, means]).sort_values("round", kind="stable")
    return [
        MetricPoint(
            _metric_name(row.model, row.split, row.moment, row.metric, row.site), int(row.round), float(row.value)
        )
        for row in both.itertuples()
    ]


def _metric_name(model: str, split: str, moment: str, metric: str, site: str) -> str:
    """Return the name of a metric in MLflow."""
    scored = split != "train"  # metrics of the training itself always belong to the moment ``trained``
    parts = [model, *(["trained"] if moment == "trained" and scored else []), split, metric, site]
    return sanitize_name("/".join(parts))


def sanitize_name(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name by ``_``."""
    return re.sub(r"[^\w.\-/ ]", "_", name)
