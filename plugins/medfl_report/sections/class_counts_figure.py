"""Figure of the number of images of each class at each site."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from medfl.data.datalists import Datalist
from medfl.data.partition.writing import count_classes_by_site

COUNTS_FIGURE = "image_counts.svg"
"""File name of the figure in the folder of a partition."""

MANY = 40
"""Largest number of sites that are drawn with circles; with more sites, a heat map has a column for each site."""

COLOUR = "#1f5a8c"
"""Colour of circles and bars."""

SHADES = "Blues"
"""Colour map of the heat map, from white for 0; readable with any colour vision and in grey."""

_ROW, _COLUMN, _BARS = 0.27, 0.72, 1.5  # inches
_GREY = "#444444"


def class_counts_figure(sites: Mapping[str, Sequence[int]], classes: Sequence[str]) -> Figure:
    """Draw how many images of each class each site holds.

    Up to `MANY` sites: a row for each site, with a circle for each class, whose area is proportional to the number, and
    a bar for the total. More sites: a heat map with a column for each site, below a curve of the totals.

    Args:
        sites: Maps each site to its number of images of each class, length C.
        classes: Names of the classes, length C.

    Returns:
        The figure; `save_figure` writes it.

    Raises:
        ValueError: If there is no site, or a site does not have one number for each class.
    """
    table = np.array([list(counts) for counts in sites.values()], dtype=np.int64)
    if table.shape != (len(sites), len(classes)) or not table.size:
        raise ValueError(f"expected {len(classes)} numbers for each of {len(sites)} sites, got shape {table.shape}")
    draw = _circles if len(sites) <= MANY else _shades
    return draw(table, [_short(name, 28) for name in sites], [_short(name, 40) for name in classes])


def draw_partition(folder: Path, written: Mapping[str, Datalist]) -> Path:
    """Write the figure of a partition into its folder and return the path.

    Args:
        folder: Folder for `COUNTS_FIGURE`.
        written: Maps each site to its data list. The server's test set and public data are left out.
    """
    return draw_counts(folder, *count_classes_by_site(written))


def draw_counts(folder: Path, sites: Mapping[str, Sequence[int]], classes: Sequence[str]) -> Path:
    """Write the figure of `class_counts_figure` into a folder and return its path."""
    save_figure(class_counts_figure(sites, classes), folder / COUNTS_FIGURE)
    return folder / COUNTS_FIGURE


def save_figure(figure: Figure, target: Path | TextIO) -> None:
    """Write a figure as SVG; the same figure gives the same bytes.

    Args:
        figure: The figure.
        target: Path of a file, or an open text file.
    """
    with matplotlib.rc_context({"svg.hashsalt": "medfl"}):
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": "medfl"})


def _circles(table: np.ndarray, sites: Sequence[str], classes: Sequence[str]) -> Figure:
    """Draw a row of circles for each site, a column for each class, and bars of the totals."""
    count, kinds = table.shape
    column = max(_COLUMN, 1.1 if kinds <= 4 else 0.0)
    left = 0.25 + 0.075 * max(map(len, sites))
    heads = [textwrap.fill(name, 14 if kinds <= 4 else 22) for name in classes]
    top = _head_height(heads, kinds <= 4)
    width, height = left + kinds * column + _BARS + 0.7, top + count * _ROW + 0.35
    figure = Figure(figsize=(width, height), layout=None)
    spans = (0.35 / height, count * _ROW / height)
    grid = figure.add_axes((left / width, spans[0], kinds * column / width, spans[1]))
    bars = figure.add_axes(((left + kinds * column + 0.15) / width, spans[0], _BARS / width, spans[1]), sharey=grid)
    _draw_circles(grid, table, column)
    grid.set_yticks(range(count), sites, fontsize=8, parse_math=False)
    turn, side = (0, "center") if kinds <= 4 else (40, "left")
    for number, head in enumerate(heads):
        style: dict[str, Any] = {"fontsize": 8, "va": "bottom", "ha": side, "parse_math": False}
        grid.text(number, -0.75, head, rotation=turn, rotation_mode="anchor", **style)
    _draw_bars(bars, table.sum(axis=1))
    return figure


def _head_height(heads: Sequence[str], level: bool) -> float:
    """Return the height of the class names in inches."""
    if level:
        return 0.35 + 0.14 * max(head.count("\n") + 1 for head in heads)
    longest = max(len(line) for head in heads for line in head.split("\n"))
    return 0.35 + 0.045 * longest


def _draw_circles(axes: Axes, table: np.ndarray, column: float) -> None:
    count, kinds = table.shape
    axes.set(xlim=(-0.5, kinds - 0.5), ylim=(count - 0.5, -0.5), xticks=[])
    axes.tick_params(length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.hlines(np.arange(count + 1) - 0.5, -0.5, kinds - 0.5, color="#dddddd", linewidth=0.5)
    rows, columns = np.nonzero(table)
    largest = (72 * _ROW * 0.92) ** 2  # area of the circle of the largest number, in square points
    areas = largest * table[rows, columns] / max(table.max(), 1)
    axes.scatter(columns - 0.22 * _COLUMN / column, rows, s=areas, color=COLOUR, linewidths=0)
    for row, kind in zip(rows.tolist(), columns.tolist(), strict=True):
        axes.text(kind + 0.02, row, f"{table[row, kind]}", fontsize=7, color=_GREY, va="center", ha="left")


def _draw_bars(axes: Axes, totals: np.ndarray) -> None:
    axes.barh(range(len(totals)), totals, color=COLOUR, height=0.6)
    axes.set_xlim(0, max(totals.max(), 1) * 1.02)
    axes.axis("off")
    for row, total in enumerate(totals):
        axes.annotate(f"{total}", (total, row), (3, 0), textcoords="offset points", fontsize=7, va="center")
    axes.text(0, -0.75, "all classes", fontsize=8, va="bottom")


def _shades(table: np.ndarray, sites: Sequence[str], classes: Sequence[str]) -> Figure:
    """Draw a heat map with a column for each site and a row for each class, below a curve of the totals."""
    count, kinds = table.shape
    left = 0.3 + 0.07 * max(map(len, classes))
    width, map_height, top = left + 8.4, max(0.24 * kinds, 0.6), 1.0
    height = top + map_height + 0.95
    figure = Figure(figsize=(width, height), layout=None)
    across = (left / width, 7.2 / width)
    above = figure.add_axes((across[0], (0.65 + map_height) / height, across[1], top / height))
    grid = figure.add_axes((across[0], 0.55 / height, across[1], map_height / height))
    scale = figure.add_axes(((left + 7.35) / width, 0.55 / height, 0.14 / width, map_height / height))
    above.fill_between(np.arange(count + 1) - 0.5, np.append(table.sum(axis=1), 0), step="post", color=COLOUR)
    above.set(xlim=(-0.5, count - 0.5), xticks=[], ylim=(0, None))
    above.set_ylabel("all classes", fontsize=8)
    above.tick_params(labelsize=7)
    for side in ("top", "right"):
        above.spines[side].set_visible(False)
    largest = max(int(table.max()), 1)
    roots = PowerNorm(0.5, vmin=0, vmax=largest)  # so that small numbers are distinguishable from 0
    shown = grid.imshow(table.T, aspect="auto", cmap=SHADES, norm=roots, interpolation="none")
    grid.set_yticks(range(kinds), classes, fontsize=8, parse_math=False)
    room = max(2, min(8, int(7.2 / (0.1 + 0.065 * max(map(len, sites))))))
    ticks = np.unique(np.linspace(0, count - 1, room).round().astype(int))
    grid.set_xticks(ticks, [sites[tick] for tick in ticks], fontsize=7, parse_math=False)
    grid.set_xlabel(f"{count} sites", fontsize=8)
    figure.colorbar(shown, cax=scale, ticks=sorted({0, largest // 4, largest})).ax.tick_params(labelsize=7)
    scale.set_title("images", fontsize=7, pad=9)
    return figure


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"
