"""Section of the report about the atlas of the data: its regions in three slices.

The regions lie over a mean of training images that shows no single image.
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

FEWEST = 10
"""Persons whose images are averaged at least; of fewer, nothing is shown, so that nobody's own image is."""


MOST = 50
"""Images that are averaged at most, evenly chosen, to bound the time."""


PLANES = ("sagittal", "coronal", "axial")
"""Slices across the first, second and third axis: to the right, to the front, up."""


@dataclass(frozen=True)
class Slice:
    """A slice through the middle of the atlas.

    Attributes:
        plane: One of `PLANES`.
        regions: (H, W), int64: number of the region, 0 for none; row 0 is the lowest.
        mean: (H, W), float64: mean of the images there, or None if they are not shown.
    """

    plane: str
    regions: np.ndarray
    mean: np.ndarray | None


@dataclass(frozen=True)
class AtlasView:
    """The atlas of a data set.

    Attributes:
        name: Of the atlas; empty if not known.
        regions: Number of its regions on the grid.
        grid: Voxels along each axis.
        channel: Name of the channel that is averaged; empty if not known.
        images: How many images were averaged; 0 if none.
        persons: In the training data, of whom an image each could be averaged.
        upright: Whether the left of the axial and coronal slice is the left of the body.
        slices: One for each of `PLANES`.
    """

    name: str
    regions: int
    grid: tuple[int, ...]
    channel: str
    images: int
    persons: int
    upright: bool
    slices: list[Slice]


def read_atlas(dataset_dir: Path, sites: Sequence[str], show_images: bool = True) -> AtlasView | None:
    """Read the atlas of a partitioned data set, and the mean of its training images.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        sites: Names of the sites whose training images count.
        show_images: Whether images may be averaged at all.

    Returns:
        None where the data set has no atlas.

    Raises:
        DataError: If data lists, images or the atlas can't be read, or don't belong together.
    """
    labels = load_regions(dataset_dir)
    if labels is None or labels.ndim != len(PLANES):
        return None
    regions = labels.numpy()
    lists = {site: read_datalist(dataset_dir / site) for site in sites}
    first = lists[sites[0]]
    chosen = _one_of_each_person(dataset_dir, lists)
    mean = _mean(chosen) if show_images and len(chosen) >= FEWEST else None
    return AtlasView(
        name=str(first.extra.get("atlas", {}).get("name", "")),
        regions=int(regions.max()),
        grid=regions.shape,
        channel=str(next(iter(first.extra.get("channels", [])), "")),
        images=0 if mean is None else min(len(chosen), MOST),
        persons=len(chosen),
        upright=_upright(first),
        slices=[_slice(axis, regions, mean) for axis in range(len(PLANES))],
    )


def _one_of_each_person(dataset_dir: Path, lists: dict[str, Datalist]) -> list[tuple[Path, int]]:
    """Array and row of the first training image of each person; an image of nobody known is a person's of its own."""
    first_images: dict[object, tuple[Path, int]] = {}
    for site, datalist in lists.items():
        array = (dataset_dir / site / datalist.image_array).resolve()
        for record in datalist.splits["training"]:
            image = (array, int(record["image"]))
            first_images.setdefault(entry_text(record, "subject_id") or image, image)
    return sorted(first_images.values())


def _mean(chosen: Sequence[tuple[Path, int]]) -> np.ndarray:
    """Mean of the first channel over images that are evenly chosen from all."""
    places = np.linspace(0, len(chosen) - 1, min(len(chosen), MOST)).round().astype(int)
    total: np.ndarray | None = None
    for path, row in (chosen[place] for place in places):
        images = open_array(path)
        image = np.asarray(images[row] if channels_of(images.shape) is None else images[row][..., 0], np.float64)
        total = image if total is None else total + image
    assert total is not None
    return total / len(places)


def _upright(datalist: Datalist) -> bool:
    affine = np.asarray(datalist.extra.get("affine", np.zeros((4, 4))), np.float64)
    if affine.shape != (4, 4):
        return False
    turn = affine[:3, :3]
    return bool((np.diag(turn) > 0).all()) and not (turn - np.diag(np.diag(turn))).any()


def _slice(axis: int, regions: np.ndarray, mean: np.ndarray | None) -> Slice:
    held = np.flatnonzero(regions.any(axis=tuple(other for other in range(regions.ndim) if other != axis)))
    place = int(held[0] + held[-1]) // 2
    cut = [None if volume is None else volume.take(place, axis=axis).T for volume in (regions, mean)]
    assert cut[0] is not None
    return Slice(PLANES[axis], cut[0], cut[1])


FILLS = (*COLOURS, "#e69f00", "#56b4e9", "#cc79a7")
"""Of regions, over and over; the lines between them tell neighbours of one colour apart."""


SHADES = 10
"""Of grey behind the regions."""


WIDE = 7.4
"""Of the picture, in inches."""


LOST = (
    "The runs used an atlas; it can't be read any more where the data were, so its regions are not drawn. They are "
    "drawn when the page is written where the data are."
)


class AtlasSection(TemplateSection):
    """Regions of the atlas of the data."""

    template = "atlas.html"

    def content(self, data: ReportData) -> Meta | None:
        """A picture, where a run had an atlas."""
        return {"atlas": atlas} if (atlas := atlas_section(data.groups)) else None

    def sources(self, data: ReportData) -> list[str]:
        """What the picture was drawn from."""
        drawn = (self.values(data) or {}).get("atlas", {}).get("picture")
        return ["the atlas and the images of the data"] if drawn else []


def atlas_section(groups: Sequence[Group]) -> Meta | None:
    """The section, from the data of the first run that still has some with an atlas; None where no run had one."""
    runs = [run for group in groups for run in group.runs]
    private = any(policy_of(run.settings).is_private for run in runs)
    folders = {run.data_folder: run for run in reversed(runs)}
    for folder, run in reversed(folders.items()):
        try:
            view = read_atlas(folder, run.sites, not private) if folder else None
        except (MedflError, OSError, ValueError, KeyError, TypeError, IndexError):
            continue  # the page is about the runs; what has become of their data is no fault of theirs
        if view is not None:
            return {"picture": _picture(view), "caption": _caption(view, private), "lost": ""}
    used = any(run.run.identity.task.regions is not None for run in runs)
    return {"picture": None, "caption": "", "lost": LOST} if used else None


def _caption(view: AtlasView, private: bool) -> str:
    named = f" of {view.name}" if view.name else ""
    text = f"{count(view.regions, 'region')}{named} on a grid of {' x '.join(map(str, view.grid))} voxels, "
    text += "in three slices through the middle of the atlas. "
    if view.images:
        channel = f" of the channel {view.channel}" if view.channel else ""
        few = f"{view.images} of {view.persons}" if view.images < view.persons else f"{view.images}"
        text += f"Behind them in grey: the mean{channel} over {few} training images from all sites, one of each person."
    elif private:
        text += "No image is behind them: differential privacy does not cover a picture of training images."
    else:
        text += f"No image is behind them: a mean of fewer than {FEWEST} persons could show a single one."
    return text + (" Left is left." if view.upright else "")


def _picture(view: AtlasView) -> Markup:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
        means = [cut.mean for cut in view.slices if cut.mean is not None]
        levels = _levels(means) if means else None
        for axes, cut in zip(figure.subplots(1, len(view.slices)), view.slices, strict=True):
            _draw(axes, cut, levels)
    return svg(figure, "atlas", f"{view.regions} regions of an atlas in three slices.")


def _levels(means: Sequence[np.ndarray]) -> np.ndarray | None:
    """Borders of the shades, over the values of most voxels that are not 0; None if these are all alike."""
    inside = np.concatenate([mean[mean != 0] for mean in means])
    low, high = np.percentile(inside, [1, 99]) if len(inside) else (0.0, 0.0)
    return np.linspace(low, high, SHADES) if high > low else None


def _draw(axes: Axes, cut: Slice, levels: np.ndarray | None) -> None:
    axes.set_title(cut.plane, fontsize=9, color=INK)
    axes.set_aspect("equal")
    axes.axis("off")
    if cut.mean is not None and levels is not None:
        axes.contourf(np.ma.masked_equal(cut.mean, 0.0), levels, cmap="gray", extend="both")
    for region in np.unique(cut.regions[cut.regions > 0]):
        mask = np.pad(cut.regions == region, 1).astype(float)
        places = [np.arange(-1, length + 1) for length in reversed(cut.regions.shape)]
        colour = FILLS[(int(region) - 1) % len(FILLS)]
        filled = axes.contourf(*places, mask, [0.5, 1.5], colors=[to_rgba(colour, 0.35)])
        filled.set(edgecolor=colour, linewidth=1.0)
