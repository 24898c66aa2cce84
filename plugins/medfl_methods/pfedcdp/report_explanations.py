"""The section of a report about what the teachers of a student look at: public images with SHAP values over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from markupsafe import Markup

from medfl.contract import Findings
from medfl.engine.runs.records import RunRecord
from medfl.types import Meta
from medfl.utils.formats import listed
from medfl_report.groups import Group
from medfl_report.rasters import balanced, colour_layer, grey_layer, plane, shades, strengths, tile
from medfl_report.scores import class_names
from medfl_report.section import ReportData, TemplateSection

IMAGES, LABELS, MAPS = "explained/images", "explained/labels", "explained/maps/"
"""Tensors of the findings, from `medfl_methods.pfedcdp.explanations.Explained`."""


MOST = 8
"""Images that are drawn of a run."""


RUNS = 4
"""Runs that are drawn on a page."""


FULL = 99.0
"""The percentile of the sizes of an image's SHAP values that has the full colour."""


class LooksSection(TemplateSection):
    """What the teachers of a student look at."""

    template = "looks.html"
    stylesheet = "looks.css"

    def content(self, data: ReportData) -> Meta | None:
        """Public images with maps, where a run explained its teachers."""
        return {"looks": looks} if (looks := looks_section(data.groups, data.findings)) else None


def looks_section(groups: Sequence[Group], findings: Mapping[str, Findings]) -> Meta | None:
    """The section, of the first run of each group that has explanations; None where none has.

    Args:
        groups: Of the page.
        findings: Run folder, as text, to what the run found out.
    """
    runs = [(group.label, run) for group in groups for run in _explained(group, findings)[:1]]
    if not runs:
        return None
    seeds = {run.seed for group in groups for run in group.runs}
    return {
        "runs": [
            _run(label if len(seeds) == 1 else f"{label}, seed {run.seed}", run, findings[str(run.folder)], f"look{n}")
            for n, (label, run) in enumerate(runs[:RUNS])
        ],
        "left": listed([label for label, _ in runs[RUNS:]]),
        "volumes": any(findings[str(run.folder)].tensors[IMAGES].ndim == 5 for _, run in runs[:RUNS]),
    }


def _explained(group: Group, findings: Mapping[str, Findings]) -> list[RunRecord]:
    return [run for run in group.runs if IMAGES in findings[str(run.folder)].tensors]


def _run(label: str, run: RunRecord, findings: Findings, name: str) -> Meta:
    """The images of a run, each with a picture for every teacher."""
    classes, tensors = class_names(run), findings.tensors
    maps = {key.removeprefix(MAPS): values for key, values in tensors.items() if key.startswith(MAPS)}
    labels = [int(label) for label in tensors[LABELS]]
    chosen = balanced(labels, MOST)
    return {
        "name": label,
        "teachers": list(maps),
        "images": len(chosen),
        "all": len(labels),
        "rows": [
            _row(
                tensors[IMAGES][row],
                {teacher: values[row] for teacher, values in maps.items()},
                classes[labels[row]],
                number,
                f"{name}-{number}",
            )
            for number, row in enumerate(chosen, start=1)
        ],
    }


def _row(image: torch.Tensor, maps: Mapping[str, torch.Tensor], label: str, number: int, id_: str) -> Meta:
    """An image, and each teacher's SHAP values over it, with one scale for all teachers."""
    grey = shades(plane(_array(image.mean(dim=0))))
    planes = {teacher: plane(_array(values)) for teacher, values in maps.items()}
    full = float(np.percentile(np.abs(np.stack(list(planes.values()))), FULL))
    behind = f'<use href="#{id_}"/>'
    return {
        "label": label,
        "full": f"{full:#.2g}",
        "image": tile(
            grey.shape, f'<g id="{id_}">{grey_layer(grey)}</g>', f"Public image {number} of the class {label}"
        ),
        "tiles": [
            _over(
                grey, behind, values, full, f"SHAP values of {teacher} over public image {number} of the class {label}"
            )
            for teacher, values in planes.items()
        ],
    }


def _over(grey: np.ndarray, behind: str, values: np.ndarray, full: float, text: str) -> Markup:
    levels = strengths(values, full)
    colours = colour_layer(levels)
    share = f"{(levels > 0).mean():.0%} of the area for the class, {(levels < 0).mean():.0%} against it"
    return tile(values.shape, behind + colours, f"{text}: {share}.", alone=grey_layer(grey) + colours)


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.double().numpy()
    return array
