"""Small pictures of images and of values over them, drawn as lines of SVG, since a page may load no raster image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import numpy as np
from markupsafe import Markup, escape
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from medfl_report.paper.pictures import keep

SIDE = 32
"""Most cells of a picture along each side; larger images are averaged down to bound the page."""


GREYS = 12
"""Shades of an image."""


STEPS = 4
"""Strengths of a colour."""


FOR, AGAINST = "#d7191c", "#0a64d6"
"""Red and blue, which people with any colour vision tell apart on grey."""


def plane(values: np.ndarray) -> np.ndarray:
    """An image of two axes, with row 0 on top, of at most `SIDE` cells along each.

    Args:
        values: Shape (H, W); of a volume (H, W, D) the middle slice across the last axis, with its second axis upwards.
    """
    if values.ndim == 3:
        values = values[..., values.shape[2] // 2].T[::-1]
    for axis in range(2):
        if values.shape[axis] > SIDE:
            edges = np.linspace(0, values.shape[axis], SIDE + 1).astype(int)
            sums = np.add.reduceat(values, edges[:-1], axis=axis)
            sizes = np.diff(edges)
            values = sums / (sizes[:, None] if axis == 0 else sizes)
    return values


def shades(image: np.ndarray) -> np.ndarray:
    """Shade of each cell from the darkest to the brightest of an image, 0 to `GREYS` - 1; 0 in an even one."""
    low, high = float(image.min()), float(image.max())
    share = (image - low) / (high - low) if high > low else np.zeros_like(image)
    cells: np.ndarray = np.rint(share * (GREYS - 1)).astype(int)
    return cells


def strengths(values: np.ndarray, full: float) -> np.ndarray:
    """Strength of each value, from -`STEPS` to `STEPS`, 0 for the weakest.

    Args:
        values: Any shape.
        full: From this size on a value has the full strength, >= 0; with 0 none has any.
    """
    share = values / full if full > 0 else np.zeros_like(values)
    cells: np.ndarray = np.clip(np.rint(share * STEPS), -STEPS, STEPS).astype(int)
    return cells


def grey_layer(levels: np.ndarray) -> str:
    """An image of `shades`, as SVG; the most frequent shade is the ground of all others."""
    ground = int(np.bincount(levels.ravel()).argmax())
    height, width = levels.shape
    paths = [strips(levels == level, _grey(level)) for level in range(GREYS) if level != ground]
    return f'<path d="M0 0h{width}v{height}h-{width}z" fill="{_grey(ground)}"/>' + "".join(paths)


def colour_layer(levels: np.ndarray) -> str:
    """Values of `strengths`, as SVG that lets what is behind shine through."""
    signs = [(level, colour) for level in range(1, STEPS + 1) for colour in (FOR, AGAINST)]
    return "".join(
        strips(levels == (level if colour == FOR else -level), colour, f"{0.8 * level / STEPS:.2g}")
        for level, colour in signs
    )


def outline_layer(mask: np.ndarray, colour: str) -> str:
    """The edge of a mask as SVG: a line between each cell of it and each neighbour that is not.

    Args:
        mask: Shape (rows, columns), of booleans.
        colour: Of the line.
    """
    padded = np.pad(mask.astype(int), 1)
    down, right = np.diff(padded, axis=0)[:, 1:-1], np.diff(padded, axis=1)[1:-1]
    edges = [f"M{column} {row}h1" for row, column in zip(*np.nonzero(down), strict=True)]
    edges += [f"M{column} {row}v1" for row, column in zip(*np.nonzero(right), strict=True)]
    if not edges:
        return ""
    style = f'fill="none" stroke="{colour}" stroke-width="2" vector-effect="non-scaling-stroke"'
    return f'<path {style} d="{"".join(edges)}"/>'


def tile(shape: Sequence[int], layers: str, description: str, alone: str = "") -> Markup:
    """A picture for a page.

    Args:
        shape: Rows and columns.
        layers: From `grey_layer` and `colour_layer`, or references to some.
        description: What it shows, for those who do not see it.
        alone: The layers for a file of its own, where `layers` refer to some of another picture.
    """
    height, width = shape
    keep("", description, partial(tile_figure, shape, alone or layers))
    return Markup(  # noqa: S704
        f'<svg class="tile" role="img" aria-label="{escape(description)}" viewBox="0 0 {width} {height}" '
        f'shape-rendering="crispEdges">{layers}</svg>'
    )


def _grey(level: int) -> str:
    return "#" + f"{round(255 * level / (GREYS - 1)):02x}" * 3


def strips(mask: np.ndarray, colour: str, opacity: str = "") -> str:
    """The cells of a mask as SVG, as horizontal lines as wide as a cell; nothing for none.

    Args:
        mask: Shape (rows, columns), of booleans.
        colour: Of the lines.
        opacity: Theirs; empty for full.
    """
    lines = []
    for row, cells in enumerate(mask):
        steps = np.flatnonzero(np.diff(np.concatenate([[0], cells.astype(int), [0]])))
        lines += [f"M{start} {row}h{end - start}" for start, end in zip(steps[::2], steps[1::2], strict=True)]
    if not lines:
        return ""
    faint = f' stroke-opacity="{opacity}"' if opacity else ""
    return f'<path transform="translate(0 .5)" stroke="{colour}"{faint} d="{"".join(lines)}"/>'


def balanced(labels: Sequence[int], most: int) -> list[int]:
    """Places of at most so many images, as evenly over the classes as can be, in their order."""
    seen: dict[int, int] = {}
    ranked = []
    for place, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        ranked.append((seen[label], place))
    return sorted(place for _, place in sorted(ranked)[:most])


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
