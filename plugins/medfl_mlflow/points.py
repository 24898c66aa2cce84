"""From rows of ``metrics.csv`` to named points for MLflow."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from medfl.types import GLOBAL

MEAN = "mean"
"""In the place of a site: the mean over the sites where the metric is defined."""


class Point(NamedTuple):
    """One value of a metric.

    Attributes:
        name: ``model/split/metric/site``, for example ``global/test/accuracy/site-01``; ``trained`` stands before the
            split for scores right after a site's training.
        step: The round that the value belongs to, from 1.
        value: A finite number.
    """

    name: str
    step: int
    value: float


def points(table: pd.DataFrame) -> list[Point]:
    """A point for each value, and one for the mean over the sites.

    Values that are not defined (NaN) or not finite, as after a diverged training, have no point. The server's test set,
    ``global``, is not part of the mean.

    Args:
        table: Rows of ``metrics.csv``.

    Returns:
        In the order of the rounds.
    """
    table = table[np.isfinite(table["value"].to_numpy(dtype=float))]
    groups = ["round", "model", "split", "moment", "metric"]
    means = table[table["site"] != GLOBAL].groupby(groups, as_index=False)["value"].mean().assign(site=MEAN)
    both = pd.concat([table, means]).sort_values("round", kind="stable")
    return [
        Point(_name(row.model, row.split, row.moment, row.metric, row.site), int(row.round), float(row.value))
        for row in both.itertuples()
    ]


def _name(model: str, split: str, moment: str, metric: str, site: str) -> str:
    scored = split != "train"  # what a site tells of its training is always of that moment
    parts = [model, *(["trained"] if moment == "trained" and scored else []), split, metric, site]
    return allowed("/".join(parts))


def allowed(name: str) -> str:
    """A name with ``_`` for each sign that MLflow does not allow in one."""
    return re.sub(r"[^\w.\-/ ]", "_", name)
