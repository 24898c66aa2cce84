"""Figures of the statistics report: bars of counts and bands of quantiles, with one row per site."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from medfl_report.figures import COLOURS, INK, LOCAL_COLOUR, STYLE, WIDTH

ROW_INCHES = 0.26
"""Height of a site's row in inches."""

CHARACTER_INCHES = 0.072
"""Width of a character of a site's name in inches."""

MAX_NAME_CHARACTERS = 24
"""Maximum number of characters of a name beside a figure."""

MAX_BAR_VALUES = 10
"""Number of a table's values that are drawn separately; the others are drawn together."""

QuantileBand = Sequence[float | None]
"""Quantiles at 5, 25, 50, 75 and 95 %; a suppressed one is None."""


def bars_figure(parts: Mapping[str, Mapping[str, float]], suppressed: Mapping[str, float], label: str) -> Figure:
    """Return a figure with the share of each site's images that have each value; the suppressed share is hatched.

    Args:
        parts: Maps each site to a mapping from each value to its share in [0, 1].
        suppressed: Maps each site to the share of its images whose value is suppressed.
        label: Label of the axis.
    """
    names = list(dict.fromkeys(name for shares in parts.values() for name in shares))
    drawn, beyond = names[:MAX_BAR_VALUES], names[MAX_BAR_VALUES:]
    colours = dict(zip(drawn, matplotlib.colormaps["tab10"].colors, strict=False))  # type: ignore[attr-defined]
    entries = len(drawn) + bool(beyond) + any(suppressed.values())
    with matplotlib.rc_context(STYLE):
        figure, axes = _row_axes(list(parts), 0.19 * -(-entries // 2) + 0.1)
        starts = dict.fromkeys(parts, 0.0)
        groups: list[tuple[str, Sequence[str], Any]] = [
            (name, [name], {"color": colours[name], "linewidth": 0}) for name in drawn
        ]
        groups += [("others", beyond, {"color": LOCAL_COLOUR, "linewidth": 0})] if beyond else []
        for title, members, look in groups:
            widths = [sum(shares.get(name, 0.0) for name in members) for shares in parts.values()]
            _stack_bars(axes, starts, widths, title, look)
        if any(suppressed.values()):
            look = {"facecolor": "none", "edgecolor": INK, "hatch": "////", "linewidth": 0.5}
            _stack_bars(axes, starts, [suppressed.get(site, 0.0) for site in parts], "suppressed", look)
        axes.set(xlim=(0, 1), xlabel=label)
        figure.legend(loc="upper left", bbox_to_anchor=(0.02, 1.0), ncols=2, borderaxespad=0.1, handlelength=1.4)
    return figure


def bands_figure(
    bands: Mapping[str, QuantileBand],
    label: str,
    outlier_sites: Collection[str],
    span: tuple[float, float] | None = None,
) -> Figure:
    """Return a figure with a quantile band for each site.

    A band is a line from 5 to 95 %, a thick line between the quartiles, and a marker at the median.

    Args:
        bands: Maps each site to its quantiles.
        label: Label of the axis.
        outlier_sites: Names of the outlier sites, which have another colour and another marker.
        span: Limits of the axis, or None.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _row_axes(list(bands), 0.06)
        for place, (site, band) in enumerate(bands.items()):
            colour = COLOURS[1] if site in outlier_sites else COLOURS[0]
            for low, high, width in ((0, 4, 1.2), (1, 3, 5.0)):
                left, right = band[low], band[high]
                if left is not None and right is not None:
                    axes.plot([left, right], [place, place], color=colour, linewidth=width, solid_capstyle="butt")
            if band[2] is not None:
                axes.plot(
                    [band[2]],
                    [place],
                    "D" if site in outlier_sites else "o",
                    color=INK,
                    markersize=4.5,
                    markeredgewidth=0,
                )
        if span is not None:
            edge = 0.02 * (span[1] - span[0])
            axes.set_xlim(span[0] - edge, span[1] + edge)
        axes.set_xlabel(label)
    return figure


def _stack_bars(axes: Axes, starts: dict[str, float], widths: Sequence[float], title: str, look: Any) -> None:
    """Draw one segment of all bars, and advance the start of the next segment in place."""
    axes.barh(range(len(starts)), widths, left=list(starts.values()), height=0.66, label=title, **look)
    for site, width in zip(starts, widths, strict=True):
        starts[site] += width


def _row_axes(sites: Sequence[str], above: float) -> tuple[Figure, Axes]:
    """Return a figure and its axes with a row for each site, the first one on top."""
    left = 0.2 + CHARACTER_INCHES * min(MAX_NAME_CHARACTERS, max(map(len, sites)))
    height = ROW_INCHES * max(2, len(sites))
    full = height + above + 0.52
    figure = Figure(figsize=(WIDTH, full), layout=None)
    axes = figure.add_axes((left / WIDTH, 0.48 / full, 1 - (left + 0.12) / WIDTH, height / full))
    names = [site if len(site) <= MAX_NAME_CHARACTERS else site[: MAX_NAME_CHARACTERS - 1] + "…" for site in sites]
    axes.set(yticks=range(len(sites)), yticklabels=names, ylim=(len(sites) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return figure, axes
