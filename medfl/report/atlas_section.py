"""The section of a report about the atlas of the data: a picture and its caption for the template."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from medfl.contract import Meta
from medfl.errors import MedflError
from medfl.report.atlas import FEWEST, AtlasView, Slice, read_atlas
from medfl.report.figures import COLOURS, INK, STYLE, svg
from medfl.report.formats import count
from medfl.report.groups import Group
from medfl.report.section import ReportData, TemplateSection

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
    private = any(run.run["identity"]["settings"].get("privacy") is not None for run in runs)
    folders = {run.data_folder: run for run in reversed(runs)}
    for folder, run in reversed(folders.items()):
        try:
            view = read_atlas(folder, run.run["identity"]["sites"], not private) if folder else None
        except (MedflError, OSError, ValueError, KeyError, TypeError, IndexError):
            continue  # the page is about the runs; what has become of their data is no fault of theirs
        if view is not None:
            return {"picture": _picture(view), "caption": _caption(view, private), "lost": ""}
    used = any("regions" in run.run["identity"]["task"] for run in runs)
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
        found = [one.mean for one in view.slices if one.mean is not None]
        levels = _levels(found) if found else None
        for axes, one in zip(figure.subplots(1, len(view.slices)), view.slices, strict=True):
            _draw(axes, one, levels)
    return svg(figure, "atlas", f"{view.regions} regions of an atlas in three slices.")


def _levels(means: Sequence[np.ndarray]) -> np.ndarray | None:
    """Borders of the shades, over the values of most voxels that are not 0; None if these are all alike."""
    inside = np.concatenate([mean[mean != 0] for mean in means])
    low, high = np.percentile(inside, [1, 99]) if len(inside) else (0.0, 0.0)
    return np.linspace(low, high, SHADES) if high > low else None


def _draw(axes: Axes, one: Slice, levels: np.ndarray | None) -> None:
    axes.set_title(one.plane, fontsize=9, color=INK)
    axes.set_aspect("equal")
    axes.axis("off")
    if one.mean is not None and levels is not None:
        axes.contourf(np.ma.masked_equal(one.mean, 0.0), levels, cmap="gray", extend="both")
    for region in np.unique(one.regions[one.regions > 0]):
        mask = np.pad(one.regions == region, 1).astype(float)
        places = [np.arange(-1, length + 1) for length in reversed(one.regions.shape)]
        colour = FILLS[(int(region) - 1) % len(FILLS)]
        filled = axes.contourf(*places, mask, [0.5, 1.5], colors=[to_rgba(colour, 0.35)])
        filled.set(edgecolor=colour, linewidth=1.0)
