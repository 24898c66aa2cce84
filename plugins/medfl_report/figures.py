"""Figures of a report as inline SVG: curves by round, reliability diagrams, differences.

Figures are `matplotlib.figure.Figure` objects without pyplot, so there is no global state and no display. The colours
of lines are distinguishable with any colour vision, on a light and on a dark page. Text and axes have the page's text
colour.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from medfl_report.paper.page_figures import record_figure

INK = "#0d0e10"
"""Placeholder in a figure for the text colour of the page."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5548c")
"""Colours of the methods: blue, vermilion, green and purple, each with a contrast of at least 3 to black and white."""

LOCAL_COLOUR = "#7f7f7f"
"""Colour of local training, and of other references: grey."""

DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)))
"""Line styles of the methods; each style is used for as many methods as there are colours."""

EMBEDDED: Any = {"svg.fonttype": "none", "svg.hashsalt": "medfl", "text.parse_math": False}
"""Matplotlib settings of inline SVG: text remains text, ids are fixed, and ``$`` starts no formula."""

STYLE: Any = {
    **EMBEDDED,
    "axes.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
}
"""Matplotlib settings of all figures of a page, beside the size."""

LARGEST = 220
"""Area in square points of the largest marker of a reliability curve: a bin with 100 % of the images."""

MANY_ROUNDS = 40
"""Number of rounds above which a curve has a thin line."""

THIN = 1.0
"""Width of a thin line, in points."""

WIDTH = 4.6
"""Width of a figure in inches: two fit side by side, and one is readable on a phone."""


@dataclass(frozen=True)
class Look:
    """Colour, line style and marker of a method in figures.

    Attributes:
        colour: Colour as ``#rrggbb``.
        dashes: Line style of matplotlib.
        marker: Marker of matplotlib.
    """

    colour: str
    dashes: Any
    marker: str


@dataclass(frozen=True)
class Curve:
    """A curve by round, or by another quantity that increases with the rounds.

    Attributes:
        name: Name in the legend.
        rounds: Rounds, from 1, increasing; or the other quantity.
        middle: Value at each round; NaN leaves a gap.
        low: Lower edge of the band; empty for no band.
        high: Upper edge of the band; empty for no band.
    """

    name: str
    rounds: Sequence[int]
    middle: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class RecoveryInterval:
    """Part of a score curve from a peak to the first later score that reaches the peak again.

    Attributes:
        peak: Index of the peak in the curve.
        end: Index of the first score that reaches the peak again, or of the last score.
        recovers: True if the peak is reached again.
    """

    peak: int
    end: int
    recovers: bool


@dataclass(frozen=True)
class Reliability:
    """Reliability curve: accuracy of a model by its confidence, in bins.

    Attributes:
        name: Name in the legend.
        confidence: Mean confidence of each bin that has images.
        accuracy: Accuracy in each of these bins.
        share: Share of the images in each of these bins.
    """

    name: str
    confidence: Sequence[float]
    accuracy: Sequence[float]
    share: Sequence[float]


def looks(names: Sequence[str], alone: Sequence[str] = ()) -> dict[str, Look]:
    """Return the look (colour, line, marker) of each name.

    Args:
        names: Names of the methods. Up to twelve names have different looks.
        alone: Names of references such as local training, which are grey.
    """
    styles, count = {}, 0
    for name in names:
        turn = count // len(COLOURS)  # marks without lines differ, too
        if name in alone:
            styles[name] = Look(LOCAL_COLOUR, DASHES[1], "s")
        else:
            styles[name] = Look(COLOURS[count % len(COLOURS)], DASHES[turn % len(DASHES)], "o^Dv"[(count + turn) % 4])
            count += 1
    return styles


def curves_figure(
    curves: Sequence[Curve], styles: Mapping[str, Look], label: str, unit: bool = True, across: str = "round"
) -> Figure:
    """Draw curves by round.

    Args:
        curves: At least one curve.
        styles: Maps the name of each curve to its look, from `looks`.
        label: Label of the vertical axis.
        unit: True if the values are in [0, 1]; the vertical axis then does not extend beyond this range.
        across: Label of the horizontal axis.
    """
    with place_axes(2.9, len(curves), 0.68 + 0.15 * label.count("\n")) as (figure, axes):
        for curve in curves:
            look = styles[curve.name]
            if len(curve.low):
                axes.fill_between(curve.rounds, curve.low, curve.high, color=look.colour, alpha=0.16, linewidth=0)
            axes.plot(
                curve.rounds,
                curve.middle,
                color=look.colour,
                linestyle=look.dashes,
                linewidth=1.8 if len(curve.rounds) <= MANY_ROUNDS else THIN,
                label=curve.name,
                marker=look.marker if len(curve.rounds) <= 12 else None,
                markersize=3.5,
            )
        axes.set_xlabel(across)
        axes.set_ylabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if unit:
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, -0.02), min(high, 1.02))
    return figure


def recovery_figure(
    curve: Curve,
    intervals: Sequence[RecoveryInterval],
    look: Look,
    label: str,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Draw a curve by round, with the area between the curve and an earlier peak shaded.

    Source: Fowler and AlRegib, ICIP 2026, figure 3.

    Args:
        curve: Scores after each round.
        intervals: Recovery intervals in order.
        look: Look of the curve.
        label: Label of the vertical axis.
        limits: Limits of the vertical axis, equal in figures that are compared; None for automatic limits.
    """
    rounds, scores = np.asarray(curve.rounds), np.asarray(curve.middle)
    shades: dict[bool, Any] = {
        True: {"facecolor": look.colour, "alpha": 0.3, "label": "below the peak, recovers"},
        False: {
            "facecolor": "none",
            "edgecolor": look.colour,
            "hatch": "////",
            "label": "below the peak, does not recover",
        },
    }
    marks: Any = {"linestyle": "none", "marker": "o", "color": look.colour, "markeredgewidth": THIN}
    peaks = np.array([interval.peak for interval in intervals], dtype=int)
    recoveries = np.array([interval.end for interval in intervals if interval.recovers], dtype=int)
    with place_axes(2.5, 5) as (figure, axes):
        axes.plot(rounds, scores, color=look.colour, linewidth=THIN, label=curve.name)
        for shade in shades.values():
            axes.fill_between([], [], linewidth=0, **shade)  # the same legend in each figure
        for interval in intervals:
            part, level = slice(interval.peak, interval.end + 1), scores[interval.peak]
            below = scores[part] <= level
            shade = shades[interval.recovers]
            axes.fill_between(rounds[part], scores[part], level, below, interpolate=True, linewidth=0, **shade)
        axes.plot(rounds[peaks], scores[peaks], markersize=3, label="peak", **marks)
        axes.plot(
            rounds[recoveries], scores[recoveries], markersize=6.5, markerfacecolor="none", label="recovery", **marks
        )
        axes.set(xlabel="round", ylabel=label, ylim=limits)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def reliability_figure(curves: Sequence[Reliability], styles: Mapping[str, Look]) -> Figure:
    """Draw reliability curves with the diagonal of perfect calibration; a marker's area is its share of the images.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, figure 1.

    Args:
        curves: At least one curve.
        styles: Maps the name of each curve to its look, from `looks`.
    """
    with place_axes(3.6, len(curves)) as (figure, axes):
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        for line in curves:
            look = styles[line.name]
            axes.plot(
                line.confidence, line.accuracy, color=look.colour, linestyle=look.dashes, linewidth=1.2, label=line.name
            )
            areas = [LARGEST * share for share in line.share]
            axes.scatter(line.confidence, line.accuracy, areas, color=look.colour, marker=look.marker, linewidths=0)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="confidence", ylabel="accuracy")
        axes.set_aspect("equal")
    return figure


def gains_figure(points: Mapping[str, Mapping[str, float]], styles: Mapping[str, Look], label: str) -> Figure:
    """Draw the difference of each method in each row, such as a class, as markers on both sides of 0.

    Source: Weng et al. 2025, FedSKD, figure 5a.

    Args:
        points: Maps each method to the difference in each row; at least one of each.
        styles: Maps each method to its look, from `looks`.
        label: Label of the horizontal axis.
    """
    rows = sorted({row for gains in points.values() for row in gains}, reverse=True)
    with place_axes(0.7 + 0.2 * len(rows), len(points), 0.25 + 0.075 * max(map(len, rows))) as (figure, axes):
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, (name, gains) in enumerate(points.items()):
            look, shift = (
                styles[name],
                0.12 * ((len(points) - 1) / 2 - place),
            )  # so that equal differences do not overlap
            heights = [rows.index(row) + max(-0.3, min(0.3, shift)) for row in gains]
            axes.scatter(list(gains.values()), heights, 22, color=look.colour, marker=look.marker, label=name)
        axes.set(yticks=range(len(rows)), yticklabels=rows, ylim=(-0.6, len(rows) - 0.4), xlabel=label)
    return figure


def svg(figure: Figure, name: str, description: str, record: bool = True) -> Markup:
    """Return a figure as an SVG element for a page, without a document head, dates, scripts or addresses.

    Args:
        figure: The figure. Its background becomes transparent.
        name: Name of letters and digits, unique on the page; the ids inside the SVG begin with it.
        description: Content of the figure in words, for screen readers.
        record: True to record the figure for files (`medfl report --figures`).
    """
    figure.set_facecolor("none")
    if record:
        record_figure(name, description, lambda: figure)
    text = io.StringIO()
    with matplotlib.rc_context(EMBEDDED):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    body = text.getvalue()
    body = body[body.index("<svg") :].replace(INK, "currentColor")
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\sxmlns(:xlink)?="[^"]*"| font-family: [^;"]*;?', "", body)
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), body)
    body = _own_ids(body, name)
    return Markup(body.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1))  # noqa: S704


def _own_ids(body: str, name: str) -> str:
    """Remove the ids that nothing refers to, and prefix the others with the figure's name."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r'\sid="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", body)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)


@contextmanager
def place_axes(height: float, entries: int, left: float = 0.68) -> Iterator[tuple[Figure, Axes]]:
    """Yield a figure and its axes at a fixed position, which is faster than a layout; add a legend at the end.

    Args:
        height: Height in inches, without the legend.
        entries: Number of entries of the legend.
        left: Distance of the axes from the left side in inches.
    """
    full = height + 0.06 + 0.19 * np.ceil(entries / 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, full), layout=None)
        axes = figure.add_axes((left / WIDTH, 0.48 / full, 1 - (left + 0.12) / WIDTH, (height - 0.48) / full))
        yield figure, axes
        handles, labels = axes.get_legend_handles_labels()
        entries_by_label: Any = dict(zip(labels, handles, strict=True))
        where: Any = {"loc": "upper left", "bbox_to_anchor": (0.02, 1.0), "borderaxespad": 0.1, "markerscale": 1.3}
        figure.legend(entries_by_label.values(), entries_by_label.keys(), ncols=2, handlelength=2.6, **where)
