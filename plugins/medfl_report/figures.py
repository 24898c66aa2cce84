"""Pictures of a report: curves over the rounds and reliability curves, as SVG that stands inside a page.

Figures are `matplotlib.figure.Figure` objects without pyplot, so nothing is global and nothing needs a screen. Lines
have colours that people with any colour vision can tell apart on a light and on a dark page; text and axes take the
page's own colour.
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

from medfl_report.paper.pictures import keep

INK = "#0d0e10"
"""Stands for the colour of the page's text in a figure."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5548c")
"""Blue, vermilion, green and purple, each with a contrast of 3 or more to black and to white."""

ALONE = "#7f7f7f"
"""Grey, for the sites alone."""

DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)))
"""Every four methods the next kind of line."""

EMBEDDED: Any = {"svg.fonttype": "none", "svg.hashsalt": "medfl", "text.parse_math": False}
"""For any picture in a page: text is text, ids are always the same, and a dollar sign is a dollar sign."""

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
LARGEST = 220
"""Area in square points of a mark that stands for all images."""

MANY = 40
"""With more rounds than this a curve is jagged, and its line thin."""

THIN = 1.0
"""Width of a thin line, in points."""

WIDTH = 4.6
"""Of a picture, in inches: two fit side by side, and one is readable on a phone."""


@dataclass(frozen=True)
class Look:
    """How a method is drawn: colour, kind of line, marker."""

    colour: str
    dashes: Any
    marker: str


@dataclass(frozen=True)
class Curve:
    """A curve over rounds, or over something else that grows from round to round.

    Attributes:
        name: For the legend.
        rounds: From 1, growing; or that something else.
        middle: A value for each round; NaN leaves a gap.
        low: Lower edge of the band, or empty for no band.
        high: Upper edge.
    """

    name: str
    rounds: Sequence[int]
    middle: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Fall:
    """A stretch of a curve below a peak.

    Attributes:
        peak: Position of the peak in the curve.
        end: Position of the first score that reaches it again, or of the last one.
        recovers: Whether it is reached again.
    """

    peak: int
    end: int
    recovers: bool


@dataclass(frozen=True)
class Reliability:
    """How often a model is right when it is so sure, in bins of its confidence.

    Attributes:
        name: For the legend.
        confidence: Mean confidence of each bin that has images.
        accuracy: Share of right predictions in each of them.
        share: Share of the images in each of them.
    """

    name: str
    confidence: Sequence[float]
    accuracy: Sequence[float]
    share: Sequence[float]


def looks(names: Sequence[str], alone: Sequence[str] = ()) -> dict[str, Look]:
    """A look for each name; those in `alone` are grey. Up to twelve others differ."""
    styles, count = {}, 0
    for name in names:
        turn = count // len(COLOURS)  # marks without lines differ, too
        if name in alone:
            styles[name] = Look(ALONE, DASHES[1], "s")
        else:
            styles[name] = Look(COLOURS[count % len(COLOURS)], DASHES[turn % len(DASHES)], "o^Dv"[(count + turn) % 4])
            count += 1
    return styles


def curves_figure(
    curves: Sequence[Curve], styles: Mapping[str, Look], label: str, unit: bool = True, across: str = "round"
) -> Figure:
    """Curves over the rounds.

    Args:
        curves: At least one.
        styles: Name to look, from `looks`.
        label: Of the vertical axis.
        unit: Whether the values are in [0, 1], and the axis ends at the ends of that where they come near.
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
                linewidth=1.8 if len(curve.rounds) <= MANY else THIN,
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
    curve: Curve, fallen: Sequence[Fall], look: Look, label: str, limits: tuple[float, float] | None = None
) -> Figure:
    """A curve over the rounds with its falls: what is missing to the last peak is shaded.

    Source: Fowler and AlRegib, ICIP 2026, figure 3.

    Args:
        curve: Scores after each round.
        fallen: In order.
        look: Of the curve.
        label: Of the vertical axis.
        limits: Of the vertical axis, to compare pictures.
    """
    rounds, scores = np.asarray(curve.rounds), np.asarray(curve.middle)
    shades: dict[bool, Any] = {
        True: {"facecolor": look.colour, "alpha": 0.3, "label": "below the peak until it is back"},
        False: {"facecolor": "none", "edgecolor": look.colour, "hatch": "////", "label": "below the peak, not back"},
    }
    marks: Any = {"linestyle": "none", "marker": "o", "color": look.colour, "markeredgewidth": THIN}
    peaks = np.array([fall.peak for fall in fallen], dtype=int)
    backs = np.array([fall.end for fall in fallen if fall.recovers], dtype=int)
    with place_axes(2.5, 5) as (figure, axes):
        axes.plot(rounds, scores, color=look.colour, linewidth=THIN, label=curve.name)
        for shade in shades.values():
            axes.fill_between([], [], linewidth=0, **shade)  # the same legend in each picture
        for fall in fallen:
            part, level = slice(fall.peak, fall.end + 1), scores[fall.peak]
            below = scores[part] <= level
            shade = shades[fall.recovers]
            axes.fill_between(rounds[part], scores[part], level, below, interpolate=True, linewidth=0, **shade)
        axes.plot(rounds[peaks], scores[peaks], markersize=3, label="peak", **marks)
        axes.plot(rounds[backs], scores[backs], markersize=6.5, markerfacecolor="none", label="back", **marks)
        axes.set(xlabel="round", ylabel=label, ylim=limits)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def reliability_figure(curves: Sequence[Reliability], styles: Mapping[str, Look]) -> Figure:
    """Reliability curves with the diagonal on which confidence and accuracy agree; large marks stand for many images.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, figure 1.

    Args:
        curves: At least one.
        styles: Name to look, from `looks`.
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
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="how sure the model is", ylabel="how often it is right")
        axes.set_aspect("equal")
    return figure


def gains_figure(points: Mapping[str, Mapping[str, float]], styles: Mapping[str, Look], label: str) -> Figure:
    """What each method gains in each row, as marks on both sides of 0.

    Source: Weng et al. 2025, FedSKD, figure 5a.

    Args:
        points: Name of a method to name of a row to the gain; at least one of each.
        styles: Name of a method to its look, from `looks`.
        label: Of the horizontal axis.
    """
    rows = sorted({row for gains in points.values() for row in gains}, reverse=True)
    with place_axes(0.7 + 0.2 * len(rows), len(points), 0.25 + 0.075 * max(map(len, rows))) as (figure, axes):
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, (name, gains) in enumerate(points.items()):
            look, shift = styles[name], 0.12 * ((len(points) - 1) / 2 - place)  # so that equal gains don't cover
            heights = [rows.index(row) + max(-0.3, min(0.3, shift)) for row in gains]
            axes.scatter(list(gains.values()), heights, 22, color=look.colour, marker=look.marker, label=name)
        axes.set(yticks=range(len(rows)), yticklabels=rows, ylim=(-0.6, len(rows) - 0.4), xlabel=label)
    return figure


def svg(figure: Figure, name: str, description: str) -> Markup:
    """A figure as an SVG element for a page: without a document's head, dates, scripts or addresses.

    Args:
        figure: To draw.
        name: Letters and digits, unlike that of any other figure of the page: the ids inside begin with it.
        description: What the picture shows, for those who do not see it.
    """
    figure.set_facecolor("none")
    keep(name, description, lambda: figure)
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
    """Keep only the ids that something points to, and begin them with the figure's name."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r'\sid="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", body)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)


@contextmanager
def place_axes(height: float, entries: int, left: float = 0.68) -> Iterator[tuple[Figure, Axes]]:
    """A figure with axes `left` inches from its side, a fixed place, which is fast, and a legend of so many entries."""
    full = height + 0.06 + 0.19 * np.ceil(entries / 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, full), layout=None)
        axes = figure.add_axes((left / WIDTH, 0.48 / full, 1 - (left + 0.12) / WIDTH, (height - 0.48) / full))
        yield figure, axes
        handles, labels = axes.get_legend_handles_labels()
        entries_by_label: Any = dict(zip(labels, handles, strict=True))
        where: Any = {"loc": "upper left", "bbox_to_anchor": (0.02, 1.0), "borderaxespad": 0.1, "markerscale": 1.3}
        figure.legend(entries_by_label.values(), entries_by_label.keys(), ncols=2, handlelength=2.6, **where)
