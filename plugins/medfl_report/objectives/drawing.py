"""Figures of the sections about one kind of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from medfl_report.figures import INK, LARGEST, Look, place_axes

DRAWN = 400
"""Most marks of a method in a picture: more would make a large page and hide each other."""


@dataclass(frozen=True)
class Bin:
    """The images whose probability is in a range.

    Attributes:
        start: Its lower end; the upper one is a tenth above.
        images: Their number.
        mean: Mean of their probabilities.
        share: How many of them have the finding.
        low: Lower end of the share's 95 % interval (Wilson), over patients where they are known.
        high: Upper end.
        weight: Share of all images.
    """

    start: float
    images: int
    mean: float
    share: float
    low: float
    high: float
    weight: float


def shown(count: int) -> np.ndarray:
    """Places of at most `DRAWN` of so many marks, evenly over all of them."""
    return np.unique(np.linspace(0, count - 1, min(count, DRAWN)).round().astype(int))


def calibration_figure(curves: Mapping[str, Sequence[Bin]], styles: Mapping[str, Look]) -> Figure:
    """How often a finding is there where a model says so, with 95 % intervals; large marks stand for many images.

    Args:
        curves: Name of a method to its bins, each with mean, share, low, high and weight (its share of all images).
        styles: Name to look.
    """
    with place_axes(3.4, len(curves)) as (figure, axes):
        axes.set(xlabel="probability of the finding", ylabel="how often it is there")
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        for name, bins in curves.items():
            look = styles[name]
            across = [each.mean for each in bins]
            style: Any = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.2}
            axes.plot(across, [each.share for each in bins], label=name, **style)
            axes.vlines(across, [each.low for each in bins], [each.high for each in bins], look.colour, linewidth=0.8)
            areas = [8 + LARGEST * each.weight for each in bins]
            mark: Any = {"color": look.colour, "marker": look.marker, "linewidths": 0}
            axes.scatter(across, [each.share for each in bins], areas, **mark)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    return figure


def scatter_figure(
    points: Mapping[str, tuple[np.ndarray, np.ndarray]],
    styles: Mapping[str, Look],
    labels: tuple[str, str],
    lines: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Marks of cases.

    Args:
        points: Name of a method to the two coordinates of its cases, (N,) each.
        styles: Name to look.
        labels: Of both axes.
        lines: Name of a method to heights at which a level line is drawn, the first one full, others dashed; None
            draws the diagonal in their place, on axes that are alike.
    """
    with place_axes(3.1, len(points)) as (figure, axes):
        axes.set(xlabel=labels[0], ylabel=labels[1])
        for name, (across, up) in points.items():
            look, some = styles[name], shown(len(across))
            mark: Any = {"color": look.colour, "marker": look.marker, "linewidths": 0, "alpha": 0.6}
            axes.scatter(across[some], up[some], 9, label=name, **mark)
            for place, level in enumerate((lines or {}).get(name, ())):
                axes.axhline(level, color=look.colour, linewidth=1.2, linestyle=(0, (4, 2)) if place else "solid")
        if lines is None:
            ends = [min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])]
            axes.axline((ends[0], ends[0]), slope=1, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
            axes.set(xlim=ends, ylim=ends)
        else:
            axes.axhline(0, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
    return figure


def survival_figure(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], styles: Mapping[str, Look]) -> Figure:
    """Product-limit curves.

    Args:
        curves: Name of a risk group to instants, from 0, and the share that is without the event from each on.
        styles: Name to look.
    """
    with place_axes(2.9, len(curves)) as (figure, axes):
        axes.set(xlabel="time", ylabel="share without the event")
        for name, (times, shares) in curves.items():
            look = styles[name]
            style: Any = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.6}
            axes.step(times, shares, where="post", label=name, **style)
        axes.set(ylim=(-0.02, 1.02), xlim=(0, None))
    return figure
