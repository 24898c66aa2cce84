"""The section of a report about images that sites shared: what is promised, who sent what, and how it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from medfl.contract import Findings
from medfl.engine.runs.records import RunRecord
from medfl.privacy.release import Release, epsilon_together
from medfl.privacy.statements import WHAT
from medfl.types import Meta
from medfl.utils.formats import count, listed, number, score
from medfl_methods.fedfed.report_data import (
    TOLD,
    Stage,
    diverging_layer,
    how_close,
    how_it_ended,
    read_stage,
    scale_bar,
    stage_figure,
    stages_figure,
    who_froze,
)
from medfl_methods.fedfed.sharing_facts import poor_generator
from medfl_report.curves import ends
from medfl_report.figures import looks, svg
from medfl_report.groups import Group
from medfl_report.rasters import SIDE, balanced, grey_layer, plane, shades, strengths, tile
from medfl_report.scores import class_names
from medfl_report.section import Notice, ReportData, TemplateSection
from medfl_report.statistics import wilson

IMAGES, LABELS = "sharing/images", "sharing/labels"
"""Tensors of the findings."""

RUNS = 4
"""Runs that are drawn on a page."""

MOST = 20
"""Shared images that are drawn of a run."""

FULL = 99.0
"""The percentile of the sizes of all values drawn of a run that has the full colour."""

NOTHING = "no differential privacy"


class SharingSection(TemplateSection):
    """Images that sites shared."""

    template = "sharing.html"

    def content(self, data: ReportData) -> Meta | None:
        """Each run that is drawn, where sites shared images."""
        return {"sharing": sharing} if (sharing := sharing_section(data.groups, data.findings)) else None

    def notices(self, data: ReportData) -> list[Notice]:
        """Runs whose generator keeps next to nothing of an image back, and who promises privacy for images alone."""
        errors = {name: data.findings[str(run.folder)].meta.get("sharing", {}).get("errors") for name, run in data.runs}
        warnings = {name: poor_generator(by_site or {}) for name, by_site in errors.items()}
        poor = [Notice("warn", f"{name}: {warning}") for name, warning in warnings.items() if warning]
        private = tuple(group.label for group in data.groups if _shares_privately(group, data.findings))
        text = f"Only what {listed(private)} sent of images has differential privacy, models have none: see "
        return [*poor, *([Notice("info", f"{text}What was shared.", private)] if private else [])]


def _shares_privately(group: Group, findings: Mapping[str, Findings]) -> bool:
    """Whether what the sites sent of their images is clipped and noised."""
    releases = _releases(findings[str(group.runs[0].folder)].meta.get("sharing", {}))
    return bool(releases) and all(release.private for release in releases)


def sharing_section(groups: Sequence[Group], findings: Mapping[str, Findings]) -> Meta | None:
    """The section, of the first run of each group whose sites share images; None where none does.

    Args:
        groups: Of the page.
        findings: Run folder, as text, to what the run found out.
    """
    runs = [(group, run) for group in groups for run in _sharing(group, findings)[:1]]
    if not runs:
        return None
    seeds = {run.seed for group in groups for run in group.runs}
    named = [(group.label if len(seeds) == 1 else f"{group.label}, seed {run.seed}", run) for group, run in runs]
    shown = [(name, run, findings[str(run.folder)]) for name, run in named]
    return {
        "runs": [
            _run(name, run, run_findings, f"sharing{place}")
            for place, (name, run, run_findings) in enumerate(shown[:RUNS])
        ],
        "left": [
            f"{name}: {_promise(_releases(run_findings.meta['sharing']))}" for name, _, run_findings in shown[RUNS:]
        ],
        "together": _together(groups, findings),
        "first": any(len(_sharing(group, findings)) > 1 for group, _ in runs),
        "bar": scale_bar(),
    }


def _together(groups: Sequence[Group], findings: Mapping[str, Findings]) -> Markup | None:
    """The first stages of all groups in one picture; None for fewer than two that tell accuracies."""
    read = {
        group.label: [read_stage(findings[str(run.folder)].meta["sharing"]) for run in _sharing(group, findings)]
        for group in groups
    }
    stages = {name: known for name, every in read.items() if (known := [stage for stage in every if stage.accuracy])}
    if len(stages) < 2:
        return None
    figure, curves = stages_figure(stages, looks([group.label for group in groups]))
    return svg(figure, "stages", f"Mean accuracy in the first stage. {ends(curves)}")


def _sharing(group: Group, findings: Mapping[str, Findings]) -> list[RunRecord]:
    return [run for run in group.runs if findings[str(run.folder)].meta.get("sharing")]


def _run(name: str, run: RunRecord, findings: Findings, id_: str) -> Meta:
    sharing: Meta = findings.meta["sharing"]
    stage, classes = read_stage(sharing), class_names(run)
    releases, statement = _releases(sharing), sharing.get("statement") or []
    return {
        "name": name,
        "promise": _promise(releases),
        "private": bool(releases) and all(release.private for release in releases),
        "statement": [statement] if isinstance(statement, str) else list(statement),
        "stage": how_it_ended(sharing, stage),
        "close": how_close(stage),
        "frozen": who_froze(stage),
        "picture": _picture(name, stage, id_),
        **_sites(run, sharing, stage),
        "classes": _by_class(sharing, classes),
        "sent": _sent_sentence(run, sharing),
        **_images(findings, classes, residual=any(release.of == "x_s" for release in releases)),
    }


def _releases(sharing: Meta) -> list[Release]:
    """How parts of images were clipped and noised, one for each copy of the same part."""
    return [Release.from_meta(release) for release in sharing.get("releases") or []]


def _promise(releases: Sequence[Release]) -> str:
    """What is promised for each shared image, in short."""
    if not releases:
        return "what is promised was not written down"
    bounds = {way: epsilon_together(releases, way) for way in WHAT}
    bounds_in_words = [f"{bound:.4g} for one that is {WHAT[way]}" for way, bound in bounds.items() if bound is not None]
    return f"epsilon of a shared image: {', '.join(bounds_in_words)}" if bounds_in_words else NOTHING


# ---- the stage before


def _picture(name: str, stage: Stage, id_: str) -> Markup | None:
    if not stage.accuracy and not stage.weights.keys() & stage.frozen.keys():
        return None
    phrases = [f"mean {_ends(stage.mean)}"] if stage.mean else []
    if len(stage.accuracy) <= TOLD:
        phrases += [f"{site} {_ends(values)}" for site, values in stage.accuracy.items()]
    if len(stage.frozen) <= TOLD:
        phrases += [f"{site} froze in round {round_}" for site, round_ in stage.frozen.items()]
        phrases += [f"weight of {site} {_ends(stage.weights[site])}" for site in stage.frozen if site in stage.weights]
    text = f"First stage of {name}, accuracy of the global generator and classifier. {'; '.join(phrases)}."
    return svg(stage_figure(stage), id_, text)


def _ends(values: Mapping[int, float]) -> str:
    (first, start), (last, end) = list(values.items())[0], list(values.items())[-1]
    return f"{score(start)} in round {first}" + (f" and {score(end)} in round {last}" if last != first else "")


# ---- who sent what


def _sent_sentence(run: RunRecord, sharing: Meta) -> str:
    sent = {site: int(images) for site, images in (sharing.get("items") or {}).items()}
    total = sum(sent.values())
    if not total:
        return "No site sent an image." if run.status == "finished" else "No site has sent an image yet."
    senders = sum(images > 0 for images in sent.values())
    return f"{count(senders, 'site')} sent {count(total, 'image')} in all, each with its label, to all participants."


def _sites(run: RunRecord, sharing: Meta, stage: Stage) -> Meta:
    """A row for each site: images sent, freezing, accuracies at both ends of the stage, last weight."""
    items = sharing.get("items") or {}
    names = sorted({*map(str, run.sites), *items, *stage.accuracy, *stage.frozen, *stage.errors})
    ends = sorted({stage.rounds[0], stage.rounds[-1]}) if stage.accuracy else []
    judged = (sharing.get("history") or [{}])[-1].get("judged") or {}
    return {
        "ends": ends,
        "freezing": bool(stage.frozen),
        "errors": bool(stage.errors),
        "last": stage.rounds[-1] if stage.rounds else None,
        "sites": [
            {
                "name": site,
                "items": number(int(items[site])) if site in items else "–",
                "frozen": stage.frozen.get(site, "–"),
                "errors": stage.errors.get(site),
                "accuracy": [stage.accuracy.get(site, {}).get(round_) for round_ in ends],
                "interval": _interval(stage.accuracy.get(site, {}).get(ends[-1]), judged.get(site)) if ends else None,
                "weight": _last(stage.weights.get(site, {})) if site in stage.frozen else None,
            }
            for site in names
        ],
        "total": number(sum(int(images) for images in items.values())),
    }


def _interval(accuracy: float | None, patients: int | None) -> str:
    """The 95 % interval of an accuracy on images of so many patients, as if each were right or wrong as a whole."""
    if accuracy is None or not patients:
        return "–"
    low, high = wilson(accuracy * patients, patients)
    return f"{score(low)} to {score(high)}"


def _last(values: Mapping[int, float]) -> float | None:
    return values[max(values)] if values else None


def _by_class(sharing: Meta, classes: Sequence[str]) -> list[tuple[str, str]]:
    counts = [int(images) for images in sharing.get("classes") or []]
    if not any(counts):
        return []
    return [(_class(classes, place), number(images)) for place, images in enumerate(counts)]


def _class(classes: Sequence[str], label: int) -> str:
    return classes[label] if 0 <= label < len(classes) else str(label)


# ---- how it looks


def _images(findings: Findings, classes: Sequence[str], residual: bool) -> Meta:
    """Some of the shared images, with one scale for all of a run."""
    images, labels = findings.tensors.get(IMAGES), findings.tensors.get(LABELS)
    if images is None or labels is None or not len(images):
        return {"tiles": [], "of": 0}
    numbers = [int(label) for label in labels]
    chosen = balanced(numbers, MOST)
    chosen.sort(key=lambda place: (numbers[place], place))
    planes = [plane(images[place].double().mean(dim=0).numpy()) for place in chosen]
    full = float(np.percentile(np.abs(np.stack(planes)), FULL))
    return {
        "tiles": [
            {
                "label": _class(classes, numbers[place]),
                "svg": _tile(values, full if residual else None, _text(values, _class(classes, numbers[place]), turn)),
            }
            for turn, (place, values) in enumerate(zip(chosen, planes, strict=True), start=1)
        ],
        "of": len(numbers),
        "residual": residual,
        "full": f"{full:#.2g}",
        "volumes": images.ndim == 5,
        "coloured": images.shape[1] > 1,
        "coarser": max(images.shape[2:4]) > SIDE,
    }


def _text(values: np.ndarray, label: str, turn: int) -> str:
    return f"Shared image {turn}, class {label}: values from {values.min():.2f} to {values.max():.2f}"


def _tile(values: np.ndarray, full: float | None, text: str) -> Markup:
    layer: Any = grey_layer(shades(values)) if full is None else diverging_layer(strengths(values, full))
    return tile(values.shape, layer, text)
