"""Curves of scores and losses by round, and their figures.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from medfl.types import GLOBAL, NON_SITE_NAMES, PUBLIC
from medfl_report.figures import Curve, Look, curves_figure, looks, svg
from medfl_report.groups import Group
from medfl_report.scores import LOCAL
from medfl_report.trajectory import Trajectory

T = TypeVar("T")
"""Type of the values from which a figure of a group is drawn."""

MAX_GROUPS = 8
"""Largest number of groups in a figure; more groups are drawn in several figures."""

EPOCH = "epoch "
"""Prefix of the moment of a score after an epoch of training at the server, as in ``epoch 3``."""


def group_looks(groups: Sequence[Group]) -> dict[str, Look]:
    """Return the colour, line and marker of each group, by label; they are the same in all figures of a page."""
    return looks([group.label for group in groups], [group.label for group in groups if group.method == LOCAL])


def compare_svg(
    draw: Callable[[dict[str, T]], Figure], by_label: Mapping[str, T], name: str, description: str
) -> Markup:
    """Return a figure that compares groups; many groups are split over several figures with the same axes.

    Args:
        draw: Draws the figure of a subset of the groups, with one pair of axes.
        by_label: Mapping from the label of each group to the group's values for `draw`; at least one.
        name: Name of letters and digits, unique on the page; the ids inside the SVG begin with the name.
        description: Content of the figure in words, for screen readers.
    """
    labels, count = list(by_label), -(-len(by_label) // MAX_GROUPS)
    parts = [labels[low:high] for low, high in pairwise(len(labels) * part // count for part in range(count + 1))]
    figures = [draw({label: by_label[label] for label in part}) for part in parts]
    axes = [figure.axes[0] for figure in figures]
    across = [end for ax in axes for end in ax.get_xlim()]
    up = [end for ax in axes for end in ax.get_ylim()]
    for ax in axes:
        ax.set(xlim=(min(across), max(across)), ylim=(min(up), max(up)))
    names = [name, *(f"{name}part{part}" for part in range(2, count + 1))]
    return Markup("\n").join(svg(*drawn, description) for drawn in zip(figures, names, strict=True))


def curves_svg(
    curves: Sequence[Curve], styles: Mapping[str, Look], label: str, name: str, description: str, **options: Any
) -> Markup:
    """Return a figure of curves by round, drawn by `compare_svg`.

    Args:
        curves: At least one curve; their names must differ.
        styles: Maps the name of each curve to its look.
        label: Label of the vertical axis.
        name: Name of letters and digits, unique on the page; the ids inside the SVG begin with the name.
        description: Content of the figure in words, for screen readers.
        **options: Further arguments of `curves_figure`.
    """

    def draw(part: dict[str, Curve]) -> Figure:
        return curves_figure(list(part.values()), styles, label, **options)

    return compare_svg(draw, {curve.name: curve for curve in curves}, name, description)


def last_values(curves: Sequence[Curve], after: str = "round {:.0f}") -> str:
    """Return the last values of curves in words; empty without curves.

    Args:
        curves: The curves.
        after: Format string for the last position, such as the round.
    """
    phrases = [f"{curve.name}: {curve.middle[-1]:.3f} after {after.format(curve.rounds[-1])}" for curve in curves]
    return "; ".join(phrases) + "." if phrases else ""


def score_curve(group: Group, metric: str, band: bool) -> Curve | None:
    """Return the mean test score of the exported models after each round, over sites and runs.

    The exported model of a site is the personal model if there is one, else the global model.

    Args:
        group: The runs.
        metric: Name of the metric.
        band: True to add a band from the minimum to the maximum.

    Returns:
        The curve; None if fewer than two rounds were evaluated.
    """
    tables = []
    for run in group.runs:
        table = run.metrics
        rows = table[
            (table["moment"] == "aggregated")
            & (table["split"] == "test")
            & (table["metric"] == metric)
            & ~table["site"].isin(NON_SITE_NAMES)
        ]
        kind = "personal" if (rows["model"] == "personal").any() else "global"
        tables.append(rows[rows["model"] == kind])
    return _curve(group.label, pd.concat(tables), band)


def global_curve(group: Group, metric: str, where: str = GLOBAL) -> Curve | None:
    """Return the global model's score after each round on the server's or the public test set.

    Args:
        group: The runs.
        metric: Name of the metric.
        where: Test set: `medfl.types.GLOBAL` (server) or `medfl.types.PUBLIC`.

    Returns:
        The curve; None if fewer than two rounds were evaluated.
    """
    rows = pd.concat([run.metrics for run in group.runs])
    rows = rows[(rows["site"] == where) & (rows["model"] == "global") & (rows["moment"] == "aggregated")]
    return _curve(group.label, rows[(rows["split"] == "test") & (rows["metric"] == metric)], band=False)


def epoch_curve(group: Group, metric: str, where: str = GLOBAL) -> Curve | None:
    """Return the score of a model trained at the server, such as a student, after each epoch.

    Args:
        group: The runs. They have such scores with the moment ``epochs``.
        metric: Name of the metric.
        where: Test set: `medfl.types.GLOBAL` (server) or `medfl.types.PUBLIC`.

    Returns:
        The curve; None for fewer than two epochs.
    """
    tables = []
    for run in group.runs:
        rows = run.metrics
        rows = rows[(rows["site"] == where) & (rows["metric"] == metric) & rows["moment"].str.startswith(EPOCH)]
        tables.append(rows[rows["round"] == rows["round"].max()])  # a continued run has trained another student
    rows = pd.concat(tables)
    epochs = rows["moment"].str.removeprefix(EPOCH).astype(int)
    return _curve(by_epoch(group.label), rows.assign(round=epochs), band=False)


def by_epoch(label: str) -> str:
    """Return the name of a curve by epoch: the curve of a group's student, a model that is trained at the server."""
    return f"{label}, student by epoch"


def public_metrics(groups: Sequence[Group]) -> list[str]:
    """Return the metrics with scores on public test images in at least two rounds or epochs."""
    tables = [run.metrics for group in groups for run in group.runs]
    rows = pd.concat([table[(table["site"] == PUBLIC) & (table["split"] == "test")] for table in tables])
    when = rows["round"].astype(str) + rows["moment"]
    rounds = when.groupby(rows["metric"], sort=False).nunique()
    return [str(metric) for metric, count in rounds.items() if count > 1]


def loss_curve(group: Group, band: bool) -> Curve | None:
    """Return the curve of the mean training loss of the sites that trained in a round; None for fewer than two rounds.

    Args:
        group: The runs.
        band: True to add a band from the minimum to the maximum.
    """
    rows = pd.concat([run.metrics for run in group.runs])
    return _curve(group.label, rows[(rows["split"] == "train") & (rows["metric"] == "loss")], band)


def trained_curve(name: str, ways: Sequence[Trajectory]) -> Curve | None:
    """Return the curve of the scores of the sites' models right after training, by round.

    A value is the mean over the participants of the round, then over the runs.

    Args:
        name: Name of the curve.
        ways: Trajectories of the runs. The curve has the rounds that all of them have.

    Returns:
        The curve; None for fewer than two rounds.
    """
    means = _mean([way.trained.mean(axis=1) for way in ways]).dropna()
    return Curve(name, means.index.tolist(), means.tolist()) if len(means) > 1 else None


def work_curve(name: str, ways: Sequence[Trajectory]) -> Curve | None:
    """Return the curve of the score on the server's test set by the cumulative seconds of training at all sites.

    Scores and seconds are means over the runs.

    Args:
        name: Name of the curve.
        ways: Trajectories of the runs. The curve has the rounds that all of them have.

    Returns:
        The curve; None for fewer than two rounds.
    """
    work, scores = _mean([way.seconds for way in ways]), _mean([way.server for way in ways])
    table = pd.DataFrame({"work": work, "score": scores}).dropna()
    return Curve(name, table["work"].tolist(), table["score"].tolist()) if len(table) > 1 else None


def _mean(runs: Sequence[pd.Series[float]]) -> pd.Series[float]:
    """Return the mean over runs for each round; NaN if a run has no value."""
    return pd.concat(runs, axis=1).mean(axis=1, skipna=False)


def _curve(name: str, rows: pd.DataFrame, band: bool) -> Curve | None:
    finite = rows[np.isfinite(rows["value"].to_numpy(dtype=float))]
    if finite["round"].nunique() < 2:
        return None
    table = finite.groupby("round")["value"].agg(["mean", "min", "max"])
    mean, low, high = (table[column].to_numpy() for column in ("mean", "min", "max"))
    return Curve(name, table.index.to_numpy(), mean, low if band else (), high if band else ())
