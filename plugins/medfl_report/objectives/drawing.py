"""Figures of the sections for one kind of task: calibration curves, scatter plots, survival curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from medfl_report.figures import INK, LARGEST, Look, place_axes

DRAWN = 400
"""Largest number of markers of a method in a scatter plot."""


@dataclass(frozen=True)
class ProbabilityBin:
    """Bin of a calibration curve: the images whose predicted probability is in a range.

    Attributes:
        start: Lower end of the range; the upper end is 0.1 above.
        images: Number of images.
        mean: Mean of the predicted probabilities.
        share: Observed frequency of the finding.
        low: Lower end of the frequency's 95 % interval (Wilson, over patients if they are known).
        high: Upper end of the interval.
        weight: Share of the bin in all images.
    """

    start: float
    images: int
    mean: float
    share: float
    low: float
    high: float
    weight: float


def shown(count: int) -> np.ndarray:
    """Return the indices of the markers to draw: at most `DRAWN` of `count`, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, DRAWN)).round().astype(int))


def calibration_figure(curves: Mapping[str, Sequence[ProbabilityBin]], styles: Mapping[str, Look]) -> Figure:
    """Draw calibration curves with 95 % intervals; a marker's area is its bin's share of the images.

    Args:
        curves: Maps each method to its bins.
        styles: Maps each method to its look.
    """
    with place_axes(3.4, len(curves)) as (figure, axes):
        axes.set(xlabel="predicted probability", ylabel="observed frequency")
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


def decision_figure(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], styles: Mapping[str, Look]) -> Figure:
    """Draw decision curves, with a dotted line for the net benefit 0 of acting for no case.

    Args:
        curves: Maps each strategy to (thresholds, net benefit at each), (T,) each.
        styles: Maps each strategy to its look.
    """
    with place_axes(3.1, len(curves)) as (figure, axes):
        axes.set(xlabel="threshold", ylabel="net benefit")
        axes.axhline(0, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        top = max(float(benefit.max()) for _, benefit in curves.values())
        for name, (thresholds, benefit) in curves.items():
            look = styles[name]
            style: Any = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.4}
            axes.plot(thresholds, benefit, label=name, **style)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.3 * max(top, 0.05), 1.1 * max(top, 0.05)))
    return figure


def scatter_figure(
    points: Mapping[str, tuple[np.ndarray, np.ndarray]],
    styles: Mapping[str, Look],
    labels: tuple[str, str],
    lines: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Draw a marker for each case.

    Args:
        points: Maps each method to the two coordinates of its cases, (N,) each.
        styles: Maps each method to its look.
        labels: Labels of the horizontal and the vertical axis.
        lines: Maps each method to the heights of horizontal lines, the first one solid, the others dashed. None draws
            the diagonal instead, on axes with equal limits.
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
    """Draw Kaplan-Meier curves.

    Args:
        curves: Mapping from each risk group to (times from 0, survival probability from each time on), (M,) each.
        styles: Maps each risk group to its look.
    """
    with place_axes(2.9, len(curves)) as (figure, axes):
        axes.set(xlabel="time", ylabel="event-free survival")
        for name, (times, shares) in curves.items():
            look = styles[name]
            style: Any = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.6}
            axes.step(times, shares, where="post", label=name, **style)
        axes.set(ylim=(-0.02, 1.02), xlim=(0, None))
    return figure
