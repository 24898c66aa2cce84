"""Section for segmentation: overlap and surface distance by class, sizes, and images of the worst cases.

The sites stored these images with their models (`medfl.engine.runs.worst_cases`), if their settings permit
it.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from medfl.engine.runs.worst_cases import WorstCase, read_worst_cases
from medfl.objectives import Segmentation
from medfl.types import Meta
from medfl.utils.formats import metric_words, number, score
from medfl_report.curves import compare_svg, group_looks
from medfl_report.groups import Group, output_names
from medfl_report.objectives.drawing import DRAWN, scatter_figure
from medfl_report.objectives.site_scores import first_seed, resampled, score_sites, sites_of, with_predictions
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet
from medfl_report.rasters import grey_layer, grey_levels, outline_layer, thumbnail_svg
from medfl_report.section import ReportData, TemplateSection

KINDS = ("dice", "hd95", "surface_dice", "lesion_f1")
"""Names of the scores of a case. The page shows the scores that are defined for at least one case."""

REFERENCE, PREDICTION = "#00c2ff", "#ff7f0e"
"""Colours of the outlines of the reference mask and of the predicted mask; distinct with any colour vision."""


class MasksSection(TemplateSection):
    """Section of a report: segmentation scores, sizes, and worst cases."""

    template = "masks.html"
    """File name of the section's Jinja template."""
    stylesheet = "masks.css"
    """File name of the section's CSS, which is added to the page."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without predictions.

        They contain scores of each class, sizes, and stored images.
        """
        return masks_section(data.groups, data.of("masks"))


def masks_section(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> Meta | None:
    """Return the variables of the template; None without predictions.

    Args:
        groups: Groups of the page.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name; empty
            for runs of other objectives.
    """
    groups = with_predictions(groups, tested)
    pooled = first_seed(groups, tested)
    if not pooled:
        return None
    objective = groups[0].objective
    assert isinstance(objective, Segmentation)  # no other objective has this figure
    outputs = output_names(groups)
    names = {label: outputs[label] if outputs else f"class {label}" for label in objective.labels}
    return {
        "names": names,
        "kinds": [
            {"kind": kind, "rows": [_row(groups, tested, pooled, objective, kind, label) for label in objective.labels]}
            for kind in KINDS
            if any(not pool.predictions[:, _columns(objective, kind)].isnan().all() for pool in pooled.values())
        ],
        "labels": [group.label for group in groups if group.label in pooled],
        "sites": sites_of(groups, tested),
        "distance": "voxels" if objective.spacing is None else "millimetres",
        "unit": shown_unit(objective)[0],
        "sizes": [_sizes(groups, pooled, objective, place, names) for place in range(len(objective.labels))],
        "drawn": DRAWN if any(len(pool.rows) > DRAWN for pool in pooled.values()) else None,
        "worst": _worst(groups),
        "over": resampled(groups, tested),
    }


def shown_unit(objective: Segmentation) -> tuple[str, float]:
    """Return the unit in which the page shows sizes, and the factor from the stored sizes; volumes are in ml."""
    return ("ml", 0.001) if objective.size_unit == "mm³" else (objective.size_unit, 1.0)


def _columns(objective: Segmentation, kind: str) -> list[int]:
    names = objective.columns(())
    return [names.index(f"{kind}_{label}") for label in objective.labels]


def _row(
    groups: Sequence[Group],
    tested: Mapping[str, PredictionSets],
    pooled: Mapping[str, PredictionSet],
    objective: Segmentation,
    kind: str,
    label: int,
) -> Meta:
    """Return the row of a class: scores and numbers of undefined cases, by group."""
    column = objective.columns(()).index(f"{kind}_{label}")
    score_of_class = objective.class_score(kind, label)
    return {
        "label": label,
        "scores": {g.label: score_sites(g, tested, score_of_class) for g in groups if g.label in pooled},
        "undefined": {g.label: _undefined(g, tested, column) for g in groups if g.label in pooled},
    }


def _undefined(group: Group, tested: Mapping[str, PredictionSets], column: int) -> str:
    """Return a phrase with the number of cases of all runs in which a score is not defined; empty for none."""
    sets = [test_set for run in group.runs for test_set in tested[str(run.folder)].values()]
    missing = sum(int(test_set.predictions[:, column].isnan().sum()) for test_set in sets)
    cases = sum(len(test_set.rows) for test_set in sets)
    runs = f" of {len(group.runs)} runs" if len(group.runs) > 1 else ""
    return f"not defined in {number(missing)} of {number(cases)} cases{runs}" if missing else ""


def _sizes(
    groups: Sequence[Group],
    pooled: Mapping[str, PredictionSet],
    objective: Segmentation,
    place: int,
    names: Mapping[int, str],
) -> Meta:
    """Return the figure of predicted against reference sizes of a class."""
    label = objective.labels[place]
    column = objective.columns(()).index(f"predicted_{label}")
    unit, factor = shown_unit(objective)
    points = {
        group: (np.asarray(pool.targets[:, place]) * factor, np.asarray(pool.predictions[:, column]) * factor)
        for group, pool in pooled.items()
    }
    styles, axes = group_looks(groups), (f"reference, {unit}", "prediction")
    means = "; ".join(
        f"{group}: {prediction.mean():.4g} for {reference.mean():.4g}"
        for group, (reference, prediction) in points.items()
    )
    text = f"Size of {names[label]}, predicted against reference. Means: {means}."
    return {
        "label": label,
        "svg": compare_svg(lambda part: scatter_figure(part, styles, axes), points, f"sizes{label}", text),
    }


def _worst(groups: Sequence[Group]) -> list[Meta]:
    """Return the worst cases of each group's first run, by site."""
    parts = []
    for group in groups:
        run = group.runs[0]
        sites = {site: read_worst_cases(run.folder / "sites" / site) for site in run.sites}
        pictures = [(site, _picture(group.label, site, case), case) for site, cases in sites.items() for case in cases]
        if pictures:
            parts.append({"label": group.label, "pictures": pictures})
    return parts


def _picture(label: str, site: str, case: WorstCase) -> Markup:
    """Return an image with the outlines of its reference and predicted mask."""
    turned = case.slice is not None
    planes = [_upright(np.asarray(case.image), turned)]
    layers = [grey_layer(grey_levels(planes[0]))]
    for masks, colour in ((case.reference, REFERENCE), (case.prediction, PREDICTION)):
        layers += [outline_layer(_upright(np.asarray(mask), turned), colour) for mask in masks]
    text = (
        f"{label}, {site}: image with outlines of reference and prediction, {metric_words('dice')} {score(case.dice)}."
    )
    return thumbnail_svg(planes[0].shape, "".join(layers), text)


def _upright(plane: np.ndarray, turned: bool) -> np.ndarray:
    """Return a slice of a volume with its second axis upwards, as in all images of volumes; other images unchanged."""
    return plane.T[::-1] if turned else plane
