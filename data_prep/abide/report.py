"""Report section that shows the regions of the data set's atlas in three slices.

The background is a mean of many training images, so that it shows no single image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from medfl.data.arrays import channels_of, open_array
from medfl.data.datalists import Datalist, entry_text, read_datalist
from medfl.errors import MedflError
from medfl.privacy.policy import policy_of
from medfl.types import Meta
from medfl.utils.formats import count
from medfl_datasets.abide.regions import load_regions
from medfl_report.figures import COLOURS, INK, STYLE, svg
from medfl_report.groups import Group
from medfl_report.section import ReportData, TemplateSection

MIN_PERSONS = 10
"""Minimum number of persons in the mean image. With fewer no image is shown, to protect each person's image."""


MAX_MEAN_IMAGES = 50
"""Maximum number of images in the mean, evenly spaced among all, to limit the computing time."""


PLANES = ("sagittal", "coronal", "axial")
"""Names of the slice planes; each is perpendicular to the first, second or third axis (right, front, up)."""


@dataclass(frozen=True)
class AtlasSlice:
    """Slice through the middle of the atlas.

    Attributes:
        plane: Name of the slice's plane, one of `PLANES`.
        regions: Number of the region at each pixel, 0 for none, shape (H, W), int64; row 0 is the lowest.
        mean: Mean of the images at each pixel, shape (H, W), float64; None if images are not shown.
    """

    plane: str
    regions: np.ndarray
    mean: np.ndarray | None


@dataclass(frozen=True)
class AtlasView:
    """Content of the report section.

    Attributes:
        name: Name of the atlas; empty if unknown.
        regions: Number of regions on the grid.
        grid: Number of voxels along each axis.
        channel: Name of the channel that is averaged; empty if unknown.
        images: Number of images in the mean; 0 if none.
        persons: Number of persons in the training data. Each contributes at most one image to the mean.
        upright: Whether the left side of the axial and coronal slices is the left side of the body.
        slices: One slice for each of `PLANES`.
    """

    name: str
    regions: int
    grid: tuple[int, ...]
    channel: str
    images: int
    persons: int
    upright: bool
    slices: list[AtlasSlice]


def read_atlas(dataset_dir: Path, sites: Sequence[str], show_images: bool = True) -> AtlasView | None:
    """Read the atlas of a partitioned data set and compute the mean of its training images.

    Args:
        dataset_dir: The folder that contains one folder for each site.
        sites: Names of the sites whose training images are used.
        show_images: Whether images may be averaged at all.

    Returns:
        The atlas with its slices, or None if the data set has no 3-D atlas.

    Raises:
        DataError: If data lists, images or the atlas can't be read, or do not belong together.
    """
    labels = load_regions(dataset_dir)
    if labels is None or labels.ndim != len(PLANES):
        return None
    regions = labels.numpy()
    lists = {site: read_datalist(dataset_dir / site) for site in sites}
    first = lists[sites[0]]
    chosen = _first_image_of_each_person(dataset_dir, lists)
    mean = _mean_image(chosen) if show_images and len(chosen) >= MIN_PERSONS else None
    return AtlasView(
        name=str(first.extra.get("atlas", {}).get("name", "")),
        regions=int(regions.max()),
        grid=regions.shape,
        channel=str(next(iter(first.extra.get("channels", [])), "")),
        images=0 if mean is None else min(len(chosen), MAX_MEAN_IMAGES),
        persons=len(chosen),
        upright=_is_upright(first),
        slices=[_cut_slice(axis, regions, mean) for axis in range(len(PLANES))],
    )


def _first_image_of_each_person(dataset_dir: Path, lists: dict[str, Datalist]) -> list[tuple[Path, int]]:
    """Return array file and row of each person's first training image; an image without a person counts as its own."""
    first_images: dict[object, tuple[Path, int]] = {}
    for site, datalist in lists.items():
        array = (dataset_dir / site / datalist.image_array).resolve()
        for record in datalist.splits["training"]:
            image = (array, int(record["image"]))
            first_images.setdefault(entry_text(record, "subject_id") or image, image)
    return sorted(first_images.values())


def _mean_image(chosen: Sequence[tuple[Path, int]]) -> np.ndarray:
    """Compute the mean of the first channel over evenly spaced images."""
    places = np.linspace(0, len(chosen) - 1, min(len(chosen), MAX_MEAN_IMAGES)).round().astype(int)
    total: np.ndarray | None = None
    for path, row in (chosen[place] for place in places):
        images = open_array(path)
        image = np.asarray(images[row] if channels_of(images.shape) is None else images[row][..., 0], np.float64)
        total = image if total is None else total + image
    assert total is not None
    return total / len(places)


def _is_upright(datalist: Datalist) -> bool:
    """Return whether the affine of the images has positive axes without rotation."""
    affine = np.asarray(datalist.extra.get("affine", np.zeros((4, 4))), np.float64)
    if affine.shape != (4, 4):
        return False
    turn = affine[:3, :3]
    return bool((np.diag(turn) > 0).all()) and not (turn - np.diag(np.diag(turn))).any()


def _cut_slice(axis: int, regions: np.ndarray, mean: np.ndarray | None) -> AtlasSlice:
    """Cut the regions and the mean image at the middle of the atlas along an axis."""
    held = np.flatnonzero(regions.any(axis=tuple(other for other in range(regions.ndim) if other != axis)))
    place = int(held[0] + held[-1]) // 2
    cut = [None if volume is None else volume.take(place, axis=axis).T for volume in (regions, mean)]
    assert cut[0] is not None
    return AtlasSlice(PLANES[axis], cut[0], cut[1])


REGION_COLOURS = (*COLOURS, "#e69f00", "#56b4e9", "#cc79a7")
"""Colours of the regions, repeated if there are more regions. Outlines separate neighbours of the same colour."""


GREY_LEVELS = 10
"""Number of grey levels of the mean image."""


FIGURE_WIDTH = 7.4
"""Width of the figure in inches."""


UNAVAILABLE = (
    "The runs used an atlas that can't be read from the data folder any more, so its regions are not drawn. To draw "
    "them, write the report on the machine that has the data."
)
"""Text of the section if the atlas can't be read any more."""


class AtlasSection(TemplateSection):
    """Report section with the regions of the data set's atlas."""

    template = "atlas.html"
    """File name of the section's HTML template, beside this module."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the template's values as ``{"atlas": atlas_values(...)}``; None if no run had an atlas."""
        return {"atlas": atlas} if (atlas := atlas_values(data.groups)) else None

    def sources(self, data: ReportData) -> list[str]:
        """Return the data sources that the footer of the page names; empty if no figure is drawn."""
        drawn = (self.values(data) or {}).get("atlas", {}).get("figure")
        return ["the atlas and the images of the data"] if drawn else []


def atlas_values(groups: Sequence[Group]) -> Meta | None:
    """Compute the values that fill the template, from the first run whose data are available and have an atlas.

    Returns:
        Dictionary with ``figure`` (SVG or None), ``caption`` and ``unavailable`` (text in place of the figure). None if
        no run had an atlas.
    """
    runs = [run for group in groups for run in group.runs]
    private = any(policy_of(run.settings).is_private for run in runs)
    folders = {run.data_folder: run for run in reversed(runs)}
    for folder, run in reversed(folders.items()):
        try:
            view = read_atlas(folder, run.sites, not private) if folder else None
        except (MedflError, OSError, ValueError, KeyError, TypeError, IndexError):
            continue  # missing data must not prevent a report about the runs
        if view is not None:
            return {"figure": _draw_figure(view), "caption": _caption(view, private), "unavailable": ""}
    used = any(run.run.identity.task.regions is not None for run in runs)
    return {"figure": None, "caption": "", "unavailable": UNAVAILABLE} if used else None


def _caption(view: AtlasView, private: bool) -> str:
    """Write the caption of the figure."""
    named = f" of {view.name}" if view.name else ""
    text = f"{count(view.regions, 'region')}{named} on a grid of {' x '.join(map(str, view.grid))} voxels, "
    text += "in three slices through the middle of the atlas. "
    if view.images:
        channel = f" of the channel {view.channel}" if view.channel else ""
        few = f"{view.images} of {view.persons}" if view.images < view.persons else f"{view.images}"
        text += (
            f"The grey background is the mean{channel} over {few} training images from all sites, one of each person."
        )
    elif private:
        text += "No image is behind the slices, because differential privacy does not cover a mean of training images."
    else:
        text += (
            f"No image is behind the slices, because a mean of fewer than {MIN_PERSONS} persons could reveal a "
            "single image."
        )
    return text + (" Left in the axial and coronal slice is the left of the body." if view.upright else "")


def _draw_figure(view: AtlasView) -> Markup:
    """Draw the slices and return the SVG."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(FIGURE_WIDTH, 2.9), layout="constrained")
        means = [cut.mean for cut in view.slices if cut.mean is not None]
        levels = _grey_borders(means) if means else None
        for axes, cut in zip(figure.subplots(1, len(view.slices)), view.slices, strict=True):
            _draw_slice(axes, cut, levels)
    return svg(figure, "atlas", f"{view.regions} regions of an atlas in three slices.")


def _grey_borders(means: Sequence[np.ndarray]) -> np.ndarray | None:
    """Compute the borders of the grey levels between the 1st and 99th percentile of the values other than 0.

    Returns:
        The borders, or None if these values are all equal.
    """
    inside = np.concatenate([mean[mean != 0] for mean in means])
    low, high = np.percentile(inside, [1, 99]) if len(inside) else (0.0, 0.0)
    return np.linspace(low, high, GREY_LEVELS) if high > low else None


def _draw_slice(axes: Axes, cut: AtlasSlice, levels: np.ndarray | None) -> None:
    """Draw a slice into the axes: the mean image in grey, and the regions in colour with outlines."""
    axes.set_title(cut.plane, fontsize=9, color=INK)
    axes.set_aspect("equal")
    axes.axis("off")
    if cut.mean is not None and levels is not None:
        axes.contourf(np.ma.masked_equal(cut.mean, 0.0), levels, cmap="gray", extend="both")
    for region in np.unique(cut.regions[cut.regions > 0]):
        mask = np.pad(cut.regions == region, 1).astype(float)
        places = [np.arange(-1, length + 1) for length in reversed(cut.regions.shape)]
        colour = REGION_COLOURS[(int(region) - 1) % len(REGION_COLOURS)]
        filled = axes.contourf(*places, mask, [0.5, 1.5], colors=[to_rgba(colour, 0.35)])
        filled.set(edgecolor=colour, linewidth=1.0)
