"""Thumbnails of images with overlays as SVG paths, since a report may load no raster images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import numpy as np
from markupsafe import Markup, escape
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from medfl_report.paper.page_figures import record_figure

SIDE = 32
"""Largest number of cells of a thumbnail along each side; larger images are averaged down to limit the page's size."""


GREYS = 12
"""Number of grey levels of an image."""


STEPS = 4
"""Number of levels of a colour overlay."""


POSITIVE, NEGATIVE = "#d7191c", "#0a64d6"
"""Colours of positive (red) and negative (blue) values; distinguishable on grey with any colour vision."""


def thumbnail(values: np.ndarray) -> np.ndarray:
    """Return an image with row 0 at the top, averaged down to at most `SIDE` cells along each axis.

    Args:
        values: Image (H, W), or volume (H, W, D). Of a volume, the middle slice of the last axis is returned with its
            second axis upwards.
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


def grey_levels(image: np.ndarray) -> np.ndarray:
    """Return the grey level of each cell, from 0 (darkest) to `GREYS` - 1 (brightest); all 0 in a constant image."""
    low, high = float(image.min()), float(image.max())
    share = (image - low) / (high - low) if high > low else np.zeros_like(image)
    cells: np.ndarray = np.rint(share * (GREYS - 1)).astype(int)
    return cells


def overlay_levels(values: np.ndarray, full: float) -> np.ndarray:
    """Return the overlay level of each value, from -`STEPS` to `STEPS`; 0 is transparent.

    Args:
        values: Values of any shape.
        full: Absolute value from which the level is `STEPS`, >= 0; 0 gives level 0 everywhere.
    """
    share = values / full if full > 0 else np.zeros_like(values)
    cells: np.ndarray = np.clip(np.rint(share * STEPS), -STEPS, STEPS).astype(int)
    return cells


def grey_layer(levels: np.ndarray) -> str:
    """Return an image of `grey_levels` as SVG. The most frequent level is a background rectangle below the others."""
    ground = int(np.bincount(levels.ravel()).argmax())
    height, width = levels.shape
    paths = [strips(levels == level, _grey(level)) for level in range(GREYS) if level != ground]
    return f'<path d="M0 0h{width}v{height}h-{width}z" fill="{_grey(ground)}"/>' + "".join(paths)


def colour_layer(levels: np.ndarray) -> str:
    """Return values of `overlay_levels` as a semi-transparent SVG overlay."""
    signs = [(level, colour) for level in range(1, STEPS + 1) for colour in (POSITIVE, NEGATIVE)]
    return "".join(
        strips(levels == (level if colour == POSITIVE else -level), colour, f"{0.8 * level / STEPS:.2g}")
        for level, colour in signs
    )


def outline_layer(mask: np.ndarray, colour: str) -> str:
    """Return the outline of a mask as SVG; empty for an empty mask.

    Args:
        mask: Mask (rows, columns), bool.
        colour: Colour of the line.
    """
    padded = np.pad(mask.astype(int), 1)
    down, right = np.diff(padded, axis=0)[:, 1:-1], np.diff(padded, axis=1)[1:-1]
    edges = [f"M{column} {row}h1" for row, column in zip(*np.nonzero(down), strict=True)]
    edges += [f"M{column} {row}v1" for row, column in zip(*np.nonzero(right), strict=True)]
    if not edges:
        return ""
    style = f'fill="none" stroke="{colour}" stroke-width="2" vector-effect="non-scaling-stroke"'
    return f'<path {style} d="{"".join(edges)}"/>'


def thumbnail_svg(shape: Sequence[int], layers: str, description: str, alone: str = "") -> Markup:
    """Return a thumbnail as an SVG element, and record it for files.

    Args:
        shape: Numbers of rows and columns.
        layers: SVG of `grey_layer`, `colour_layer` and `outline_layer`, or references to elements of another thumbnail.
        description: Content in words, for screen readers.
        alone: Self-contained layers for files, if `layers` contain references; empty otherwise.
    """
    height, width = shape
    record_figure("", description, partial(tile_figure, shape, alone or layers))
    return Markup(  # noqa: S704
        f'<svg class="tile" role="img" aria-label="{escape(description)}" viewBox="0 0 {width} {height}" '
        f'shape-rendering="crispEdges">{layers}</svg>'
    )


def _grey(level: int) -> str:
    return "#" + f"{round(255 * level / (GREYS - 1)):02x}" * 3


def strips(mask: np.ndarray, colour: str, opacity: str = "") -> str:
    """Return the cells of a mask as SVG, as horizontal lines one cell wide; empty for an empty mask.

    Args:
        mask: Mask (rows, columns), bool.
        colour: Colour of the lines.
        opacity: Opacity of the lines; empty for full opacity.
    """
    lines = []
    for row, cells in enumerate(mask):
        steps = np.flatnonzero(np.diff(np.concatenate([[0], cells.astype(int), [0]])))
        lines += [f"M{start} {row}h{end - start}" for start, end in zip(steps[::2], steps[1::2], strict=True)]
    if not lines:
        return ""
    faint = f' stroke-opacity="{opacity}"' if opacity else ""
    return f'<path transform="translate(0 .5)" stroke="{colour}"{faint} d="{"".join(lines)}"/>'


def balanced_indices(labels: Sequence[int], most: int) -> list[int]:
    """Return the indices of at most `most` images, as evenly over the classes as possible, in increasing order."""
    seen: dict[int, int] = {}
    ranked = []
    for place, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        ranked.append((seen[label], place))
    return sorted(place for _, place in sorted(ranked)[:most])


EDGE = 1.6
"""Length of the longer side of a thumbnail's figure in inches."""

Stroke = tuple[int, int, int, int]
"""Line of an SVG path: column and row of its start, length to the right, length downwards."""


def tile_figure(shape: Sequence[int], layers: str) -> Figure:
    """Draw a thumbnail as a matplotlib figure, for files.

    Args:
        shape: Numbers of rows and columns.
        layers: SVG of this module's layers: paths of whole cells, filled, as strips or as outlines.
    """
    height, width = shape
    image, edges = np.ones((height, width, 3)), list[tuple[list[Stroke], str]]()
    for attributes in re.findall(r"<path([^>]*)/>", layers):
        values = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        strokes = list(_strokes(values["d"]))
        if values.get("fill", "none") != "none":
            image[:] = to_rgb(values["fill"])  # only the background has a fill
        elif "transform" in values:
            share, colour = float(values.get("stroke-opacity", 1)), np.array(to_rgb(values["stroke"]))
            for column, row, across, _ in strokes:
                part = image[row, column : column + across]
                part[:] = (1 - share) * part + share * colour
        else:
            edges.append((strokes, values["stroke"]))
    scale = EDGE / max(height, width)
    figure = Figure(figsize=(width * scale, height * scale), layout=None)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(image, interpolation="nearest", extent=(0, width, height, 0))
    for strokes, colour_name in edges:
        ends = [((column, row), (column + across, row + down)) for column, row, across, down in strokes]
        axes.add_collection(LineCollection(ends, colors=colour_name, linewidths=1.5))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure


def _strokes(path: str) -> list[Stroke]:
    """Return the first line of each subpath of a path."""
    strokes = []
    for column, row, way, length in re.findall(r"M(\d+) ?(\d+)([hv])(\d+)", path):
        across, down = (int(length), 0) if way == "h" else (0, int(length))
        strokes.append((int(column), int(row), across, down))
    return strokes
