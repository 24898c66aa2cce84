"""Report section on explanations of a student's teachers: public images with the teachers' SHAP values.

The student of PFedCDP is a network that the server trains at the end from the clusters' models, its teachers.
A group of runs contains the runs that differ only in seed or fold. The findings of a run are metadata and tensors that
the run's method recorded for the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from markupsafe import Markup

from medfl.contract import Findings
from medfl.engine.runs.records import RunRecord
from medfl.types import Meta
from medfl.utils.formats import join_words
from medfl_report.groups import Group
from medfl_report.rasters import (
    balanced_indices,
    colour_layer,
    grey_layer,
    grey_levels,
    overlay_levels,
    thumbnail,
    thumbnail_svg,
)
from medfl_report.scores import class_names
from medfl_report.section import ReportData, TemplateSection

IMAGES, LABELS, MAPS = "explained/images", "explained/labels", "explained/maps/"
"""Names of the findings' tensors. `IMAGES`: explained images; `LABELS`: class labels of the images; `MAPS`: prefix of
the SHAP values of each teacher, followed by the teacher's name."""


MAX_DRAWN_IMAGES = 8
"""Maximum number of images that are drawn for a run."""


MAX_DRAWN_RUNS = 4
"""Maximum number of runs whose images are drawn on a page; further runs are only named."""


FULL_COLOUR_PERCENTILE = 99.0
"""Percentile of the absolute SHAP values of all teachers on an image that gets the full colour; larger ones look the
same."""


class ExplanationsSection(TemplateSection):
    """Report section on the SHAP values of a student's teachers."""

    template = "explanations.html"
    """File name of the section's HTML template (Jinja), in the folder of this module."""
    stylesheet = "explanations.css"
    """File name of the section's CSS file, in the folder of this module."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None leaves the section out, because no run has explanations."""
        return {"looks": looks} if (looks := explanations_section(data.groups, data.findings)) else None


def explanations_section(groups: Sequence[Group], findings: Mapping[str, Findings]) -> Meta | None:
    """Return the variables of the section's template, or None if no run has explanations.

    From each group the first run with explanations is shown.

    Args:
        groups: Groups of runs on the page.
        findings: Mapping from the folder of each run, as text, to the findings of the run.
    """
    runs = [(group.label, run) for group in groups for run in _runs_with_explanations(group, findings)[:1]]
    if not runs:
        return None
    seeds = {run.seed for group in groups for run in group.runs}
    return {
        "runs": [
            _run_content(
                label if len(seeds) == 1 else f"{label}, seed {run.seed}", run, findings[str(run.folder)], f"look{n}"
            )
            for n, (label, run) in enumerate(runs[:MAX_DRAWN_RUNS])
        ],
        "not_drawn": join_words([label for label, _ in runs[MAX_DRAWN_RUNS:]]),
        "volumes": any(findings[str(run.folder)].tensors[IMAGES].ndim == 5 for _, run in runs[:MAX_DRAWN_RUNS]),
    }


def _runs_with_explanations(group: Group, findings: Mapping[str, Findings]) -> list[RunRecord]:
    """Return the runs of a group that have explanations."""
    return [run for run in group.runs if IMAGES in findings[str(run.folder)].tensors]


def _run_content(label: str, run: RunRecord, findings: Findings, name: str) -> Meta:
    """Return the images of a run, each with a map for every teacher."""
    classes, tensors = class_names(run), findings.tensors
    maps = {key.removeprefix(MAPS): values for key, values in tensors.items() if key.startswith(MAPS)}
    labels = [int(label) for label in tensors[LABELS]]
    chosen = balanced_indices(labels, MAX_DRAWN_IMAGES)
    return {
        "name": label,
        "teachers": list(maps),
        "images": len(chosen),
        "all": len(labels),
        "rows": [
            _image_row(
                tensors[IMAGES][row],
                {teacher: values[row] for teacher, values in maps.items()},
                classes[labels[row]],
                number,
                f"{name}-{number}",
            )
            for number, row in enumerate(chosen, start=1)
        ],
    }


def _image_row(image: torch.Tensor, maps: Mapping[str, torch.Tensor], label: str, number: int, id_: str) -> Meta:
    """Return an image and each teacher's SHAP values over it, with one colour scale for all teachers."""
    grey = grey_levels(thumbnail(_to_array(image.mean(dim=0))))
    planes = {teacher: thumbnail(_to_array(values)) for teacher, values in maps.items()}
    full = float(np.percentile(np.abs(np.stack(list(planes.values()))), FULL_COLOUR_PERCENTILE))
    behind = f'<use href="#{id_}"/>'
    return {
        "label": label,
        "full": f"{full:#.2g}",
        "image": thumbnail_svg(
            grey.shape, f'<g id="{id_}">{grey_layer(grey)}</g>', f"Public image {number} of the class {label}"
        ),
        "tiles": [
            _map_over_image(
                grey, behind, values, full, f"SHAP values of {teacher} over public image {number} of the class {label}"
            )
            for teacher, values in planes.items()
        ],
    }


def _map_over_image(grey: np.ndarray, behind: str, values: np.ndarray, full: float, text: str) -> Markup:
    """Return SHAP values over a grey image as SVG."""
    levels = overlay_levels(values, full)
    colours = colour_layer(levels)
    share = f"{(levels > 0).mean():.0%} of the area for the class, {(levels < 0).mean():.0%} against it"
    return thumbnail_svg(values.shape, behind + colours, f"{text}: {share}.", alone=grey_layer(grey) + colours)


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as a NumPy array in double precision."""
    array: np.ndarray = tensor.double().numpy()
    return array
