"""Pictures of a description: what is counted at each site, and bands of quantiles, a row for each site."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from medfl_report.figures import ALONE, COLOURS, INK, STYLE, WIDTH

ROW = 0.26
"""Inches of a site's row."""

LETTER = 0.072
"""Inches of a letter of a site's name."""

LONGEST = 24
"""Letters of a name beside a picture."""

KINDS = 10
"""Values of a table that are drawn one by one; what is beyond is drawn as one."""

Band = Sequence[float | None]
"""Quantiles at 5, 25, 50, 75 and 95 %; None where one is withheld."""


def bars_figure(parts: Mapping[str, Mapping[str, float]], withheld: Mapping[str, float], label: str) -> Figure:
    """What part of each site's images has each value; what is withheld is hatched.

    Args:
        parts: Site to value to its share in [0, 1].
        withheld: Site to the share of its images of which nothing is known.
        label: Of the axis.
    """
    names = list(dict.fromkeys(name for shares in parts.values() for name in shares))
    drawn, beyond = names[:KINDS], names[KINDS:]
    colours = dict(zip(drawn, matplotlib.colormaps["tab10"].colors, strict=False))  # type: ignore[attr-defined]
    entries = len(drawn) + bool(beyond) + any(withheld.values())
    with matplotlib.rc_context(STYLE):
        figure, axes = _rows(list(parts), 0.19 * -(-entries // 2) + 0.1)
        starts = dict.fromkeys(parts, 0.0)
        groups: list[tuple[str, Sequence[str], Any]] = [
            (name, [name], {"color": colours[name], "linewidth": 0}) for name in drawn
        ]
        groups += [("others", beyond, {"color": ALONE, "linewidth": 0})] if beyond else []
        for title, members, look in groups:
            widths = [sum(shares.get(name, 0.0) for name in members) for shares in parts.values()]
            _stack(axes, starts, widths, title, look)
        if any(withheld.values()):
            look = {"facecolor": "none", "edgecolor": INK, "hatch": "////", "linewidth": 0.5}
            _stack(axes, starts, [withheld.get(site, 0.0) for site in parts], "withheld", look)
        axes.set(xlim=(0, 1), xlabel=label)
        figure.legend(loc="upper left", bbox_to_anchor=(0.02, 1.0), ncols=2, borderaxespad=0.1, handlelength=1.4)
    return figure


def bands_figure(
    bands: Mapping[str, Band], label: str, odd: Collection[str], span: tuple[float, float] | None = None
) -> Figure:
    """A line from 5 to 95 %, a thick one between the quartiles and a mark at the median, for each site.

    Args:
        bands: Site to its quantiles.
        label: Of the axis.
        odd: Sites that stand out; they have another colour and another mark.
        span: Of the axis, or None.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _rows(list(bands), 0.06)
        for place, (site, band) in enumerate(bands.items()):
            colour = COLOURS[1] if site in odd else COLOURS[0]
            for low, high, width in ((0, 4, 1.2), (1, 3, 5.0)):
                left, right = band[low], band[high]
                if left is not None and right is not None:
                    axes.plot([left, right], [place, place], color=colour, linewidth=width, solid_capstyle="butt")
            if band[2] is not None:
                axes.plot([band[2]], [place], "D" if site in odd else "o", color=INK, markersize=4.5, markeredgewidth=0)
        if span is not None:
            edge = 0.02 * (span[1] - span[0])
            axes.set_xlim(span[0] - edge, span[1] + edge)
        axes.set_xlabel(label)
    return figure


def _stack(axes: Axes, starts: dict[str, float], widths: Sequence[float], title: str, look: Any) -> None:
    axes.barh(range(len(starts)), widths, left=list(starts.values()), height=0.66, label=title, **look)
    for site, width in zip(starts, widths, strict=True):
        starts[site] += width


def _rows(sites: Sequence[str], above: float) -> tuple[Figure, Axes]:
    """A figure with a row for each site, the first one on top."""
    left = 0.2 + LETTER * min(LONGEST, max(map(len, sites)))
    height = ROW * max(2, len(sites))
    full = height + above + 0.52
    figure = Figure(figsize=(WIDTH, full), layout=None)
    axes = figure.add_axes((left / WIDTH, 0.48 / full, 1 - (left + 0.12) / WIDTH, height / full))
    names = [site if len(site) <= LONGEST else site[: LONGEST - 1] + "…" for site in sites]
    axes.set(yticks=range(len(sites)), yticklabels=names, ylim=(len(sites) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return figure, axes
