"""Curves over the rounds, from the metrics of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from medfl.types import GLOBAL, NO_SITES, PUBLIC
from medfl_report.figures import Curve, Look, curves_figure, looks, svg
from medfl_report.groups import Group
from medfl_report.scores import ALONE
from medfl_report.trajectory import Trajectory

T = TypeVar("T")

TOGETHER = 8
"""How many groups a picture shows: the looks of twelve differ, and nobody reads a legend of more."""

EPOCH = "epoch "
"""What the moment of a score after an epoch begins with."""


def group_looks(groups: Sequence[Group]) -> dict[str, Look]:
    """The look of each group, the same in all pictures of a page."""
    return looks([group.label for group in groups], [group.label for group in groups if group.method == ALONE])


def compare_svg(
    draw: Callable[[dict[str, T]], Figure], by_label: Mapping[str, T], name: str, description: str
) -> Markup:
    """A picture that compares groups; of many groups several, below each other and on the same axes.

    Args:
        draw: Makes the figure of some of the groups, with one pair of axes.
        by_label: Label of each group to what is drawn of it; at least one.
        name: As for `medfl_report.figures.svg`.
        description: The same.
    """
    labels, count = list(by_label), -(-len(by_label) // TOGETHER)
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
    """Curves of groups over the rounds, drawn by `compare_svg`; other arguments as for `curves_figure`.

    Args:
        curves: At least one, each with a name of its own.
        styles: Name to look.
        label: Of the vertical axis.
        name: As for `medfl_report.figures.svg`.
        description: The same.
        **options: Of `curves_figure`.
    """

    def draw(part: dict[str, Curve]) -> Figure:
        return curves_figure(list(part.values()), styles, label, **options)

    return compare_svg(draw, {curve.name: curve for curve in curves}, name, description)


def ends(curves: Sequence[Curve], after: str = "round {:.0f}") -> str:
    """Where curves end, in words; empty without any."""
    phrases = [f"{curve.name}: {curve.middle[-1]:.3f} after {after.format(curve.rounds[-1])}" for curve in curves]
    return "; ".join(phrases) + "." if phrases else ""


def score_curve(group: Group, metric: str, band: bool) -> Curve | None:
    """Mean over sites (and seeds, folds) of a test score after each round, with a band from the worst to the best.

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
            & ~table["site"].isin(NO_SITES)
        ]
        kind = "personal" if (rows["model"] == "personal").any() else "global"
        tables.append(rows[rows["model"] == kind])
    return _curve(group.label, pd.concat(tables), band)


def global_curve(group: Group, metric: str, where: str = GLOBAL) -> Curve | None:
    """Score of the global model after each round on test images of no site; None if fewer than two rounds were scored.

    Args:
        group: The runs.
        metric: Name of the score.
        where: The server's test set, or the public one.
    """
    rows = pd.concat([run.metrics for run in group.runs])
    rows = rows[(rows["site"] == where) & (rows["model"] == "global") & (rows["moment"] == "aggregated")]
    return _curve(group.label, rows[(rows["split"] == "test") & (rows["metric"] == metric)], band=False)


def epoch_curve(group: Group, metric: str, where: str = GLOBAL) -> Curve | None:
    """Score of a model that the server trained, such as a student, after each epoch; None with fewer than two.

    Args:
        group: The runs; with the moment ``epochs`` they have such scores.
        metric: Name of the score.
        where: As in `global_curve`.
    """
    tables = []
    for run in group.runs:
        rows = run.metrics
        rows = rows[(rows["site"] == where) & (rows["metric"] == metric) & rows["moment"].str.startswith(EPOCH)]
        tables.append(rows[rows["round"] == rows["round"].max()])  # a run that went on has trained another one
    rows = pd.concat(tables)
    epochs = rows["moment"].str.removeprefix(EPOCH).astype(int)
    return _curve(by_epoch(group.label), rows.assign(round=epochs), band=False)


def by_epoch(label: str) -> str:
    """What the curve of a group's student is called."""
    return f"{label}, student by epoch"


def public_metrics(groups: Sequence[Group]) -> list[str]:
    """The scores that several rounds or epochs have on public test images, in the order of the runs' tables."""
    tables = [run.metrics for group in groups for run in group.runs]
    rows = pd.concat([table[(table["site"] == PUBLIC) & (table["split"] == "test")] for table in tables])
    when = rows["round"].astype(str) + rows["moment"]
    rounds = when.groupby(rows["metric"], sort=False).nunique()
    return [str(metric) for metric, count in rounds.items() if count > 1]


def loss_curve(group: Group, band: bool) -> Curve | None:
    """Mean training loss of the sites that took part in each round; None if fewer than two rounds have one."""
    rows = pd.concat([run.metrics for run in group.runs])
    return _curve(group.label, rows[(rows["split"] == "train") & (rows["metric"] == "loss")], band)


def trained_curve(name: str, ways: Sequence[Trajectory]) -> Curve | None:
    """Score of the sites right after their training, as mean over the participants of a round and then over the runs.

    It has the rounds that all runs have.

    Returns:
        None for fewer than two.
    """
    means = _mean([way.trained.mean(axis=1) for way in ways]).dropna()
    return Curve(name, means.index.tolist(), means.tolist()) if len(means) > 1 else None


def work_curve(name: str, ways: Sequence[Trajectory]) -> Curve | None:
    """Score on the server's test set against the seconds of work up to it, both as mean over runs, round by round.

    It has the rounds that all runs have.

    Returns:
        None for fewer than two.
    """
    work, scores = _mean([way.seconds for way in ways]), _mean([way.server for way in ways])
    table = pd.DataFrame({"work": work, "score": scores}).dropna()
    return Curve(name, table["work"].tolist(), table["score"].tolist()) if len(table) > 1 else None


def _mean(runs: Sequence[pd.Series[float]]) -> pd.Series[float]:
    """Mean over runs, round by round; NaN where one has no value."""
    return pd.concat(runs, axis=1).mean(axis=1, skipna=False)


def _curve(name: str, rows: pd.DataFrame, band: bool) -> Curve | None:
    finite = rows[np.isfinite(rows["value"].to_numpy(dtype=float))]
    if finite["round"].nunique() < 2:
        return None
    table = finite.groupby("round")["value"].agg(["mean", "min", "max"])
    mean, low, high = (table[column].to_numpy() for column in ("mean", "min", "max"))
    return Curve(name, table.index.to_numpy(), mean, low if band else (), high if band else ())
