"""Report section on shared images: privacy statement, shared images by site and class, and examples.

Shared images are parts of images that the sites send once, with noise. Before, in stage 1, the sites train a generator
and a classifier. A group of runs contains the runs that differ only in seed or fold. The findings of a run are metadata
and tensors that the run's method recorded for the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from medfl.contract import Findings
from medfl.engine.runs.records import RunRecord
from medfl.privacy.release import ImageRelease, epsilon_together
from medfl.privacy.statements import ADJACENCY_WORDS
from medfl.types import Meta
from medfl.utils.formats import count, join_words, number, score
from medfl_methods.fedfed.sharing_figures import (
    MAX_LISTED_SITES,
    DistillationStage,
    describe_end,
    describe_freezing,
    describe_generator_error,
    diverging_layer,
    read_stage,
    scale_bar,
    stage_figure,
    stages_figure,
)
from medfl_methods.fedfed.sharing_findings import poor_generator_warning
from medfl_report.curves import last_values
from medfl_report.figures import looks, svg
from medfl_report.groups import Group
from medfl_report.rasters import (
    SIDE,
    balanced_indices,
    grey_layer,
    grey_levels,
    overlay_levels,
    thumbnail,
    thumbnail_svg,
)
from medfl_report.scores import class_names
from medfl_report.section import Notice, ReportData, TemplateSection
from medfl_report.statistics import wilson

IMAGES, LABELS = "sharing/images", "sharing/labels"
"""Names of the findings' tensors. `IMAGES`: some shared images; `LABELS`: class labels of these images."""

MAX_DRAWN_RUNS = 4
"""Maximum number of runs whose shared images are drawn on a page."""

MAX_EXAMPLES = 20
"""Maximum number of shared images that are drawn for a run."""

FULL_COLOUR_PERCENTILE = 99.0
"""Percentile of the absolute pixel values of a run's shared images that gets the full colour; larger ones look
equal."""

NO_PRIVACY = "no differential privacy"
"""Words in place of epsilon in the report, for a run whose shared images have no differential privacy."""


class SharingSection(TemplateSection):
    """Report section on the images that sites shared."""

    template = "sharing.html"
    """File name of the section's HTML template (Jinja), in the folder of this module."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None leaves the section out, because no run shared images."""
        return {"sharing": sharing} if (sharing := sharing_section(data.groups, data.findings)) else None

    def notices(self, data: ReportData) -> list[Notice]:
        """Return notices for the top of the page.

        They are warnings about poor generators, and a note if only the shared images have differential privacy.
        """
        errors = {name: data.findings[str(run.folder)].meta.get("sharing", {}).get("errors") for name, run in data.runs}
        warnings = {name: poor_generator_warning(by_site or {}) for name, by_site in errors.items()}
        poor = [Notice("warn", f"{name}: {warning}") for name, warning in warnings.items() if warning]
        private = tuple(group.label for group in data.groups if _shares_privately(group, data.findings))
        text = f"In {join_words(private)} only the shared images have differential privacy, the models have none: see "
        return [*poor, *([Notice("info", f"{text}Shared images.", private)] if private else [])]


def _shares_privately(group: Group, findings: Mapping[str, Findings]) -> bool:
    """Return whether the shared parts of images are clipped and noised."""
    releases = _releases(findings[str(group.runs[0].folder)].meta.get("sharing", {}))
    return bool(releases) and all(release.private for release in releases)


def sharing_section(groups: Sequence[Group], findings: Mapping[str, Findings]) -> Meta | None:
    """Return the variables of the section's template, or None if no run shared images.

    The section shows the first run with shared images of each group.

    Args:
        groups: Groups of runs on the page.
        findings: Mapping from the folder of each run, as text, to the run's findings.
    """
    runs = [(group, run) for group in groups for run in _sharing_runs(group, findings)[:1]]
    if not runs:
        return None
    seeds = {run.seed for group in groups for run in group.runs}
    named = [(group.label if len(seeds) == 1 else f"{group.label}, seed {run.seed}", run) for group, run in runs]
    shown = [(name, run, findings[str(run.folder)]) for name, run in named]
    return {
        "runs": [
            _run_content(name, run, run_findings, f"sharing{place}")
            for place, (name, run, run_findings) in enumerate(shown[:MAX_DRAWN_RUNS])
        ],
        "not_drawn": [
            f"{name}: {_privacy_summary(_releases(run_findings.meta['sharing']))}"
            for name, _, run_findings in shown[MAX_DRAWN_RUNS:]
        ],
        "stages": _stages_of_groups(groups, findings),
        "shows_first": any(len(_sharing_runs(group, findings)) > 1 for group, _ in runs),
        "scale_bar": scale_bar(),
    }


def _stages_of_groups(groups: Sequence[Group], findings: Mapping[str, Findings]) -> Markup | None:
    """Return the stages 1 of all groups in one figure; None for fewer than two groups with accuracies."""
    read = {
        group.label: [read_stage(findings[str(run.folder)].meta["sharing"]) for run in _sharing_runs(group, findings)]
        for group in groups
    }
    stages = {name: known for name, every in read.items() if (known := [stage for stage in every if stage.accuracy])}
    if len(stages) < 2:
        return None
    figure, curves = stages_figure(stages, looks([group.label for group in groups]))
    return svg(figure, "stages", f"Mean accuracy in stage 1. {last_values(curves)}")


def _sharing_runs(group: Group, findings: Mapping[str, Findings]) -> list[RunRecord]:
    """Return the runs of a group whose sites share images."""
    return [run for run in group.runs if findings[str(run.folder)].meta.get("sharing")]


def _run_content(name: str, run: RunRecord, findings: Findings, id_: str) -> Meta:
    """Return the content of one run."""
    sharing: Meta = findings.meta["sharing"]
    stage, classes = read_stage(sharing), class_names(run)
    releases, statement = _releases(sharing), sharing.get("statement") or []
    return {
        "name": name,
        "privacy": _privacy_summary(releases),
        "is_private": bool(releases) and all(release.private for release in releases),
        "statement": [statement] if isinstance(statement, str) else list(statement),
        "stage": describe_end(sharing, stage),
        "generator_error": describe_generator_error(stage),
        "frozen": describe_freezing(stage),
        "stage_figure": _stage_svg(name, stage, id_),
        **_site_rows(run, sharing, stage),
        "classes": _class_counts(sharing, classes),
        "summary": _sent_sentence(run, sharing),
        **_examples(findings, classes, residual=any(release.of == "x_s" for release in releases)),
    }


def _releases(sharing: Meta) -> list[ImageRelease]:
    """Return the release mechanisms (clip and noise) of a run, one for each copy."""
    return [ImageRelease.from_meta(release) for release in sharing.get("releases") or []]


def _privacy_summary(releases: Sequence[ImageRelease]) -> str:
    """Return a short statement on the privacy of each shared image."""
    if not releases:
        return "no privacy statement recorded"
    bounds = {way: epsilon_together(releases, way) for way in ADJACENCY_WORDS}
    bounds_in_words = [
        f"{bound:.4g} if an image is {ADJACENCY_WORDS[way]}" for way, bound in bounds.items() if bound is not None
    ]
    return f"epsilon of a shared image: {', '.join(bounds_in_words)}" if bounds_in_words else NO_PRIVACY


# ---- stage 1


def _stage_svg(name: str, stage: DistillationStage, id_: str) -> Markup | None:
    """Return the figure of stage 1 as SVG, or None without values to draw."""
    if not stage.accuracy and not stage.weights.keys() & stage.frozen.keys():
        return None
    phrases = [f"mean {_first_and_last(stage.mean)}"] if stage.mean else []
    if len(stage.accuracy) <= MAX_LISTED_SITES:
        phrases += [f"{site} {_first_and_last(values)}" for site, values in stage.accuracy.items()]
    if len(stage.frozen) <= MAX_LISTED_SITES:
        phrases += [f"{site} froze in round {round_}" for site, round_ in stage.frozen.items()]
        phrases += [
            f"weight of {site} {_first_and_last(stage.weights[site])}" for site in stage.frozen if site in stage.weights
        ]
    text = f"Stage 1 of {name}: accuracy of the global generator and classifier. {'; '.join(phrases)}."
    return svg(stage_figure(stage), id_, text)


def _first_and_last(values: Mapping[int, float]) -> str:
    """Return a phrase on the first and last value."""
    (first, start), (last, end) = list(values.items())[0], list(values.items())[-1]
    return f"{score(start)} in round {first}" + (f" and {score(end)} in round {last}" if last != first else "")


# ---- shared images by site and class


def _sent_sentence(run: RunRecord, sharing: Meta) -> str:
    """Return a sentence on the number of shared images."""
    sent = {site: int(images) for site, images in (sharing.get("items") or {}).items()}
    total = sum(sent.values())
    if not total:
        return "No site shared an image." if run.status == "finished" else "No site has shared an image yet."
    senders = sum(images > 0 for images in sent.values())
    return f"{count(senders, 'site')} shared {count(total, 'image')} with all participants, each with its label."


def _site_rows(run: RunRecord, sharing: Meta, stage: DistillationStage) -> Meta:
    """Return a row for each site: shared images, freezing, first and last accuracy of the stage, last weight."""
    items = sharing.get("items") or {}
    names = sorted({*map(str, run.sites), *items, *stage.accuracy, *stage.frozen, *stage.errors})
    end_rounds = sorted({stage.rounds[0], stage.rounds[-1]}) if stage.accuracy else []
    patients = (sharing.get("history") or [{}])[-1].get("patients") or {}
    return {
        "ends": end_rounds,
        "freezing": bool(stage.frozen),
        "errors": bool(stage.errors),
        "last": stage.rounds[-1] if stage.rounds else None,
        "sites": [
            {
                "name": site,
                "items": number(int(items[site])) if site in items else "–",
                "frozen": stage.frozen.get(site, "–"),
                "errors": stage.errors.get(site),
                "accuracy": [stage.accuracy.get(site, {}).get(round_) for round_ in end_rounds],
                "interval": _interval(stage.accuracy.get(site, {}).get(end_rounds[-1]), patients.get(site))
                if end_rounds
                else None,
                "weight": _last_value(stage.weights.get(site, {})) if site in stage.frozen else None,
            }
            for site in names
        ],
        "total": number(sum(int(images) for images in items.values())),
    }


def _interval(accuracy: float | None, patients: int | None) -> str:
    """Return the 95 % interval of an accuracy with the number of patients as sample size.

    It treats all images of a patient as either correct or wrong.
    """
    if accuracy is None or not patients:
        return "–"
    low, high = wilson(accuracy * patients, patients)
    return f"{score(low)} to {score(high)}"


def _last_value(values: Mapping[int, float]) -> float | None:
    """Return the value of the last round, or None."""
    return values[max(values)] if values else None


def _class_counts(sharing: Meta, classes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name and the number of shared images of each class."""
    counts = [int(images) for images in sharing.get("classes") or []]
    if not any(counts):
        return []
    return [(_class_name(classes, place), number(images)) for place, images in enumerate(counts)]


def _class_name(classes: Sequence[str], label: int) -> str:
    """Return the name of a class, or its number if it has no name."""
    return classes[label] if 0 <= label < len(classes) else str(label)


# ---- examples


def _examples(findings: Findings, classes: Sequence[str], residual: bool) -> Meta:
    """Return examples of the shared images, with one colour scale for all images of a run."""
    images, labels = findings.tensors.get(IMAGES), findings.tensors.get(LABELS)
    if images is None or labels is None or not len(images):
        return {"tiles": [], "count": 0}
    numbers = [int(label) for label in labels]
    chosen = balanced_indices(numbers, MAX_EXAMPLES)
    chosen.sort(key=lambda place: (numbers[place], place))
    planes = [thumbnail(images[place].double().mean(dim=0).numpy()) for place in chosen]
    full = float(np.percentile(np.abs(np.stack(planes)), FULL_COLOUR_PERCENTILE))
    return {
        "tiles": [
            {
                "label": _class_name(classes, numbers[place]),
                "svg": _example_svg(
                    values,
                    full if residual else None,
                    _example_description(values, _class_name(classes, numbers[place]), turn),
                ),
            }
            for turn, (place, values) in enumerate(zip(chosen, planes, strict=True), start=1)
        ],
        "count": len(numbers),
        "residual": residual,
        "full_colour": f"{full:#.2g}",
        "volumes": images.ndim == 5,
        "coloured": images.shape[1] > 1,
        "downsampled": max(images.shape[2:4]) > SIDE,
    }


def _example_description(values: np.ndarray, label: str, turn: int) -> str:
    """Return the description of an example for screen readers."""
    return f"Shared image {turn}, class {label}: values from {values.min():.2f} to {values.max():.2f}"


def _example_svg(values: np.ndarray, full: float | None, text: str) -> Markup:
    """Return an example as SVG: grey for whole images, diverging colours for residuals."""
    layer: Any = grey_layer(grey_levels(values)) if full is None else diverging_layer(overlay_levels(values, full))
    return thumbnail_svg(values.shape, layer, text)
