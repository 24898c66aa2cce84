"""Pictures of images as PNG inside the page, with outlines of masks, and figures of histograms."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from medfl_report.data_overview.cases import DataSetImages, ImageCase, unit_pixels
from medfl_report.figures import looks, place_axes

PIXELS = 128
"""Largest edge of a picture in pixels."""

OUTLINE = np.array([255, 176, 0], dtype=np.uint8)
"""Colour of the outline of a mask: amber, visible on black, grey and white."""

MAX_CURVES = 12
"""Maximum number of groups in a figure of histograms; the largest groups are drawn."""


MAX_LEGEND = 20
"""Number of characters from which the name of a group is shortened in a legend."""


@dataclass(frozen=True)
class Picture:
    """An image of a patient as the page shows it.

    Attributes:
        source: PNG as a ``data:`` address.
        caption: Short text below the picture: row in the image array, and target.
        description: Content in words, for screen readers.
    """

    source: str
    caption: str
    description: str


def choose_cases(data: DataSetImages, most: int, seed: int = 0) -> dict[str, list[int]]:
    """Return the positions of at most `most` random training images of each site, in the order of the data list.

    Args:
        data: Images of the data set.
        most: Maximum number of images of a site.
        seed: Seed of the choice.
    """
    rng = np.random.default_rng(seed)
    places: dict[str, list[int]] = {}
    for place, case in enumerate(data.cases):
        if case.split == "training":
            places.setdefault(case.site, []).append(place)
    return {
        site: sorted(rng.choice(some, min(most, len(some)), replace=False).tolist()) for site, some in places.items()
    }


def draw_picture(data: DataSetImages, case: ImageCase, span: tuple[float, float]) -> Picture:
    """Return an image as a picture; of a volume the middle slice of the last axis, with its second axis upwards.

    Args:
        data: Images of the data set.
        case: The image.
        span: Values that become black and white.
    """
    site = data.sites[case.site]
    pixels = unit_pixels(data.image(case)[np.newaxis], site.images)[0]
    mask = data.mask(case)
    label = None if mask is None else _label_map(mask, pixels.shape[:-1])
    if pixels.ndim == 4:
        middle = pixels.shape[2] // 2
        pixels = pixels[:, ::-1, middle].swapaxes(0, 1)
        label = None if label is None else label[:, ::-1, middle].T
    grey = np.nan_to_num((pixels - span[0]) / (span[1] - span[0]), nan=0.0, posinf=1.0, neginf=0.0)
    levels = np.rint(255 * np.clip(grey, 0, 1)).astype(np.uint8)
    colour = levels if levels.shape[-1] == 3 else np.repeat(levels[..., :1], 3, axis=-1)
    height, width = colour.shape[:2]
    scale = PIXELS / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    drawn = np.asarray(Image.fromarray(colour).resize(size, Image.Resampling.BILINEAR)).copy()
    if label is not None:
        large = np.asarray(Image.fromarray(label.astype(np.uint8)).resize(size, Image.Resampling.NEAREST))
        drawn[_outline(large)] = OUTLINE
    content = io.BytesIO()
    Image.fromarray(drawn).save(content, "PNG", optimize=True)
    text = base64.b64encode(content.getvalue()).decode()
    caption = f"row {case.row}{f': {case.target}' if case.target else ''}"
    return Picture(f"data:image/png;base64,{text}", caption, f"{case.site}, {caption}")


def _label_map(mask: np.ndarray, spatial: tuple[int, ...]) -> np.ndarray:
    """Return a mask as labels of shape `spatial`; overlapping structures are joined.

    Args:
        mask: Mask as its array stores it: labels of shape `spatial`, or an array (C, *spatial) of structures.
        spatial: Spatial shape of the image.
    """
    cells = int(np.prod(spatial))
    layers = mask.reshape(-1, cells)
    joined = layers[0] if len(layers) == 1 else np.asarray((layers > 0).any(axis=0))
    return joined.reshape(spatial)


def _outline(label: np.ndarray) -> np.ndarray:
    """Return the pixels of structures that border on another label, (H, W), bool."""
    edge = np.zeros(label.shape, dtype=bool)
    down, right = label[1:] != label[:-1], label[:, 1:] != label[:, :-1]
    edge[1:] |= down
    edge[:-1] |= down
    edge[:, 1:] |= right
    edge[:, :-1] |= right
    return edge & (label > 0)


def histogram_figure(shares: Mapping[str, np.ndarray], edges: np.ndarray) -> Figure:
    """Return a figure with the mean histogram of each group as a curve.

    Args:
        shares: Maps each of at most `MAX_CURVES` groups to the share of its pixels in each bin.
        edges: Edges of the bins.
    """
    names = {name: name if len(name) <= MAX_LEGEND else f"{name[: MAX_LEGEND - 6]}…{name[-5:]}" for name in shares}
    if len(set(names.values())) < len(names):
        names = {name: name for name in shares}
    styles = looks(list(shares))
    centres = (edges[1:] + edges[:-1]) / 2
    with place_axes(2.0, len(shares)) as (figure, axes):
        for name, values in shares.items():
            style = styles[name]
            axes.plot(
                centres, 100 * values, color=style.colour, linestyle=style.dashes, linewidth=1.5, label=names[name]
            )
        top = max(float(np.sort(values)[-3]) for values in shares.values())
        axes.set(xlabel="pixel value: dark to bright", ylabel="% of the pixels", ylim=(0, 125 * max(top, 1e-3)))
    return figure
