"""What each section of a report shows: numbers, pictures and sentences for the templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from medfl.metrics import UNBOUNDED
from medfl.types import GLOBAL, PUBLIC, Meta
from medfl.utils.formats import listed, metric_words, score, sentence
from medfl_report.curves import (
    by_epoch,
    compare_svg,
    curves_svg,
    ends,
    epoch_curve,
    global_curve,
    group_looks,
    loss_curve,
    public_metrics,
    score_curve,
)
from medfl_report.figures import EMBEDDED, Curve, Reliability, reliability_figure, svg
from medfl_report.groups import Group, output_names, several
from medfl_report.notices import Named
from medfl_report.patient_tests import Sets
from medfl_report.predictions import Tested
from medfl_report.scores import (
    calibration_error,
    class_names,
    confusion_of,
    key_metrics,
    pool_group,
    reliability_of,
    score_table,
)
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections import costs as facts
from medfl_report.sections.costs import savings
from medfl_report.sections.holdings import holdings_figure

BANDS = 3
"""With more curves than this in a picture the bands would hide each other and are left out."""

MATRIX = 30
"""With more classes than this a confusion matrix is no longer readable and is left out."""

CLASSES_DRAWN = 60
"""With more classes than this the picture of who holds what is left out; the numbers stand in the table."""


class ScoresSection(TemplateSection):
    """All scores."""

    template = "scores.html"

    def content(self, data: ReportData) -> Meta:
        """Tables, confusion matrices and reliability."""
        groups = [group for group in data.groups if "confusion" in group.objective.figures]
        drawn = _confusions(groups, pooled := pool(groups, data.predictions)) | _reliability(groups, pooled)
        return {"scores": scores(data.groups) | drawn, "classes": bool(groups)}


class CurvesSection(TemplateSection):
    """Scores and losses round by round."""

    template = "curves.html"

    def content(self, data: ReportData) -> Meta:
        """Pictures, and why some are missing."""
        return {"curves": curves(data.groups)}


class HoldingsSection(TemplateSection):
    """Who holds what."""

    template = "holdings.html"

    def content(self, data: ReportData) -> Meta:
        """Images of each class at each site."""
        return {"holdings": holdings(data.runs)}


class CostsSection(TemplateSection):
    """Bytes and seconds."""

    template = "costs.html"

    def content(self, data: ReportData) -> Meta:
        """What runs cost, and what quantisation saves."""
        groups = facts.group_costs(data.groups)
        return {"costs": facts.costs(data.runs), "groups": groups, "savings": savings(data.runs)}


class SettingsSection(TemplateSection):
    """How the runs were set."""

    template = "settings.html"

    def content(self, data: ReportData) -> Meta:
        """Settings with their origins, versions, and data hashes."""
        return {"settings": settings(data.runs), "runs": data.runs}


# ---- scores


def scores(groups: Sequence[Group]) -> Meta:
    """All scores."""
    captions = {
        "test": "The global test set is one that the server holds.",
        "shared": "Here each site's personal model is scored on the server's test set, which all sites share.",
        "val": "Validation images are those that choices may be made by.",
    }
    names = {"val": "validation", "shared": "shared test"}
    tables = {split: score_table(groups, split) for split in captions}
    splits = [
        {"name": names.get(split, split), "table": table, "caption": captions[split]}
        for split, table in tables.items()
        if table
    ]
    return {
        "sentences": [f"There are no {listed(missing)} scores." for missing in [_absent(tables)] if missing],
        "splits": splits,
        "several": several(groups),
        "public": any(row.public_test.mean is not None for rows in tables["test"].values() for row in rows),
        "metrics": sorted({metric for table in tables.values() for metric in table}),
    }


def pool(groups: Sequence[Group], tested: Mapping[str, Sets]) -> dict[str, Tested]:
    """Label of each group with predictions to its test images, of all sites and seeds."""
    return {group.label: test_set for group in groups if (test_set := pool_group(group, tested)) is not None}


def _absent(tables: Mapping[str, Any]) -> list[str]:
    names = {"test": "test", "val": "validation"}
    return [name for split, name in names.items() if not tables[split]]


def _confusions(groups: Sequence[Group], pooled: Mapping[str, Tested]) -> Meta:
    sentences, matrices = [], []
    missing = [group.label for group in groups if group.label not in pooled]
    if missing:
        sentences.append(f"There are no predictions on test images from {listed(missing)}.")
    for group in groups:
        if group.label not in pooled:
            continue
        names = class_names(group.runs[0])
        if len(names) > MATRIX:
            sentences.append(f"The matrix of {group.label} is left out: {len(names)} classes are too many to read.")
            continue
        matrix = confusion_of(group.label, pooled[group.label])
        matrices.append({"name": group.label, "classes": names, "counts": matrix.counts, "shares": matrix.shares})
        empty = [name for name, row in zip(names, matrix.counts, strict=True) if not any(row)]
        if empty:
            sentences.append(f"{group.label}: no test image of {listed(empty)}.")
    return {"confusions": matrices, "confusion_sentences": sentences}


def _reliability(groups: Sequence[Group], pooled: Mapping[str, Tested]) -> Meta:
    if not pooled:
        return {"reliability": None}
    errors = "; ".join(f"{name} {score(calibration_error(test_set))}" for name, test_set in pooled.items())
    curves = {name: reliability_of(name, test_set) for name, test_set in pooled.items()}
    styles = group_looks(groups)

    def draw(part: dict[str, Reliability]) -> Figure:
        return reliability_figure(list(part.values()), styles)

    picture = compare_svg(draw, curves, "reliability", f"Reliability curves. ECE: {errors}.")
    return {"reliability": picture, "calibration": errors}


# ---- curves


def curves(groups: Sequence[Group]) -> Meta:
    """Curves over the rounds; a sentence for what can't be drawn."""
    styles, band = group_looks(groups), len(groups) <= BANDS
    names = output_names(groups)
    plans: list[tuple[str, list[Curve | None], str, bool]] = []
    for metric in key_metrics(groups):
        group_curves = [score_curve(group, metric, band) for group in groups]
        plans.append(
            (
                f"{metric_words(metric, names)}, mean of sites",
                group_curves,
                "on their test images",
                metric not in UNBOUNDED,
            )
        )
    styles |= {by_epoch(group.label): styles[group.label] for group in groups}
    for metric in key_metrics(groups)[:1]:
        group_curves = _at_server(groups, metric, GLOBAL)
        plans.append(
            (
                f"{metric_words(metric, names)}, global test",
                group_curves,
                "on the server's test images",
                metric not in UNBOUNDED,
            )
        )
    for metric in public_metrics(groups):
        group_curves = _at_server(groups, metric, PUBLIC)
        plans.append(
            (
                f"{metric_words(metric, names)}, public test",
                group_curves,
                "on public test images",
                metric not in UNBOUNDED,
            )
        )
    losses = [loss_curve(group, band) for group in groups]
    plans.append(("training loss", losses, "of the sites that trained in a round", False))
    pictures, sentences, labels = [], [], {group.label for group in groups}
    for index, (label, curves_, what, bounded) in enumerate(plans):
        drawn = [curve for curve in curves_ if curve is not None]
        if not drawn:
            sentences.append(f"No curve of {label}: fewer than two rounds have it.")
            continue
        text = f"{sentence(label)} {what}."
        students = [curve for curve in drawn if curve.name not in labels]
        across = "round, or epoch of a student" if students else "round"
        phrases = [ends([curve for curve in drawn if curve.name in labels]), ends(students, "epoch {:.0f}")]
        words = " ".join([text, *filter(None, phrases)])
        picture = curves_svg(drawn, styles, label, f"curve{index}", words, unit=bounded, across=across)
        pictures.append({"svg": picture, "caption": text})
    over = several(groups)
    caption = "A line is the mean over the sites" + (f" and {over}" if over else "")
    caption += ", the band reaches from the lowest to the highest." if band else "."
    return {"pictures": pictures, "sentences": sentences, "caption": caption}


def _at_server(groups: Sequence[Group], metric: str, where: str) -> list[Curve | None]:
    """Curves of the server's models: over the rounds, and of students over their epochs."""
    return [find(group, metric, where) for group in groups for find in (global_curve, epoch_curve)]


# ---- the rest


def holdings(runs: Sequence[Named]) -> list[Meta]:
    """Who holds what, once for each data set."""
    return [
        {
            "name": sentence(holding.name),
            "classes": holding.classes,
            "splits": holding.splits,
            "picture": _holdings_picture(holding, f"holdings{index}"),
        }
        for index, holding in enumerate(facts.holdings(runs))
    ]


def _holdings_picture(holding: facts.Holding, name: str) -> Markup | None:
    training = holding.splits.get("training")
    if not training or len(holding.classes) > CLASSES_DRAWN:
        return None
    totals = "; ".join(f"{site}: {sum(counts)}" for site, counts in list(training.items())[:20])
    more = f", and {len(training) - 20} more sites" if len(training) > 20 else ""
    with matplotlib.rc_context(EMBEDDED):
        figure = holdings_figure(training, holding.classes)
    return svg(figure, name, f"Training images at each site. {totals}{more}.")


def settings(runs: Sequence[Named]) -> Meta:
    """Settings with origins, versions, and data hashes."""
    table = facts.settings(runs)
    return {
        "unlike": [fact for fact in table if fact.runs],
        "alike": [fact for fact in table if not fact.runs],
        "without": listed([name for name, run in runs if not run.run.provenance.settings]),
        "surroundings": facts.surroundings(runs),
        "hashes": facts.data_hashes(runs),
    }
