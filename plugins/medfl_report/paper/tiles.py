"""Small pictures of images (`medfl_report.rasters`) as figures: their shapes, read from the lines of SVG they are."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

EDGE = 1.6
"""Inches of the longer side."""

Pen = tuple[int, int, int, int]
"""A cell or an edge: column and row of its start, and how far it goes to the right and down."""


def tile_figure(shape: Sequence[int], layers: str) -> Figure:
    """Draw a picture.

    Args:
        shape: Rows and columns.
        layers: Of `medfl_report.rasters`: paths of whole cells, filled, as strips or as outlines.
    """
    height, width = shape
    image, edges = np.ones((height, width, 3)), list[tuple[list[Pen], str]]()
    for attributes in re.findall(r"<path([^>]*)/>", layers):
        facts = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        pens = list(_pens(facts["d"]))
        if facts.get("fill", "none") != "none":
            image[:] = to_rgb(facts["fill"])  # the ground is the only area
        elif "transform" in facts:
            share, colour = float(facts.get("stroke-opacity", 1)), np.array(to_rgb(facts["stroke"]))
            for column, row, across, _ in pens:
                part = image[row, column : column + across]
                part[:] = (1 - share) * part + share * colour
        else:
            edges.append((pens, facts["stroke"]))
    scale = EDGE / max(height, width)
    figure = Figure(figsize=(width * scale, height * scale), layout=None)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(image, interpolation="nearest", extent=(0, width, height, 0))
    for pens, stroke in edges:
        ends = [((column, row), (column + across, row + down)) for column, row, across, down in pens]
        axes.add_collection(LineCollection(ends, colors=stroke, linewidths=1.5))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure


def _pens(path: str) -> list[Pen]:
    """The first stroke of each part of a path."""
    pens = []
    for column, row, way, length in re.findall(r"M(\d+) ?(\d+)([hv])(\d+)", path):
        across, down = (int(length), 0) if way == "h" else (0, int(length))
        pens.append((int(column), int(row), across, down))
    return pens
