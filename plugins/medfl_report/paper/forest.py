"""Differences with their intervals, row by row, as papers show them; a page draws the same within its table."""

from __future__ import annotations

from matplotlib.figure import Figure

from medfl_report.figures import ALONE, COLOURS, INK, place_axes
from medfl_report.gains import GAINS, LOSES, Comparison

TONES = {GAINS: COLOURS[0], LOSES: COLOURS[1]}
"""Verdict to colour; any other is grey."""


def forest_figure(comparison: Comparison, label: str) -> Figure:
    """A mark and a line for each row that has a difference, the first row on top.

    Args:
        comparison: Its rows, their mean and the worst.
        label: Of the horizontal axis.
    """
    rows = [(row, row.difference) for row in comparison.lines if row.difference is not None]
    names = [row.name for row, _ in rows]
    with place_axes(0.75 + 0.22 * len(rows), 0, 0.3 + 0.075 * max(map(len, names), default=0)) as (figure, axes):
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, (row, difference) in enumerate(reversed(rows)):
            colour = TONES.get(row.verdict, ALONE)
            if row.low is not None and row.high is not None:
                axes.hlines(place, row.low, row.high, color=colour, linewidth=1.4)
            axes.plot([difference], [place], color=colour, marker="o", markersize=4.5, linestyle="none")
        axes.set(yticks=range(len(rows)), yticklabels=names[::-1], ylim=(-0.6, max(len(rows), 1) - 0.4))
        axes.set(xlim=(-comparison.reach, comparison.reach), xlabel=label)
    return figure
