"""Sections of every report: test performance, curves by round, data by site, cost, settings.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from medfl.metrics import UNBOUNDED_METRICS
from medfl.types import GLOBAL, PUBLIC, Meta
from medfl.utils.formats import join_words, metric_words, score, sentence
from medfl_report.curves import (
    by_epoch,
    compare_svg,
    curves_svg,
    epoch_curve,
    global_curve,
    group_looks,
    last_values,
    loss_curve,
    public_metrics,
    score_curve,
)
from medfl_report.figures import EMBEDDED, Curve, Reliability, reliability_figure, svg
from medfl_report.groups import Group, output_names, repeated_word
from medfl_report.notices import NamedRun
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet
from medfl_report.scores import (
    calibration_error,
    class_names,
    confusion_of,
    page_metrics,
    pool_group,
    reliability_of,
    score_table,
)
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections import run_tables as run_tables
from medfl_report.sections.class_counts_figure import class_counts_figure

MAX_BANDS = 3
"""Largest number of curves in a figure that are drawn with bands."""

MAX_MATRIX_CLASSES = 30
"""Largest number of classes of a confusion matrix on the page."""

MAX_CLASSES_DRAWN = 60
"""Largest number of classes in the figure of image counts; with more classes there is only the table."""


class ScoresSection(TemplateSection):
    """Section of a report on test performance: all metrics, confusion matrices, calibration."""

    template = "scores.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without scores.

        They contain tables, confusion matrices and the reliability diagram.
        """
        if not any(run.scores for _, run in data.runs):
            return None
        groups = [group for group in data.groups if "confusion" in group.objective.figures]
        drawn = _confusions(groups, pooled := pool(groups, data.predictions)) | _reliability(groups, pooled)
        return {"scores": scores(data.groups) | drawn, "classes": bool(pooled)}


class CurvesSection(TemplateSection):
    """Section of a report: scores and training loss by round."""

    template = "curves.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template: the figures; None if fewer than two rounds were evaluated."""
        drawn = curves(data.groups)
        return {"curves": drawn} if drawn["pictures"] else None


class ImageCountsSection(TemplateSection):
    """Section of a report: number of images of each class at each site."""

    template = "image_counts.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None if no run knows the image counts.

        They contain figures and tables of each data set.
        """
        return {"data_sets": shown} if (shown := image_counts(data.runs)) else None


class CostsSection(TemplateSection):
    """Section of a report: cost of the runs in bytes and seconds, and savings by quantisation."""

    template = "costs.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template: the costs of runs and methods; None while no run is over."""
        costs = run_tables.costs(data.runs)
        if not costs:
            return None
        peers = any(cost.total["bytes_to_peers"] for cost in costs)
        groups = run_tables.group_costs(data.groups)
        return {"costs": costs, "groups": groups, "savings": run_tables.savings(data.runs), "peers": peers}


class SettingsSection(TemplateSection):
    """Section of a report: settings, versions and data hashes of the runs."""

    template = "settings.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta:
        """Return the variables of the template: settings with their origins, versions, and data hashes."""
        return {"settings": settings(data.runs), "runs": data.runs}


# ---- scores


def scores(groups: Sequence[Group]) -> Meta:
    """Return template variables with the scores in all metrics on all splits that were evaluated."""
    captions = {
        "test": "",
        "shared": "Each site's personal model on the server's test set.",
        "val": "Validation images may be used for model selection.",
    }
    names = {"val": "validation", "shared": "shared test"}
    tables = {split: score_table(groups, split) for split in captions}
    all_rows = [row for table in tables.values() for rows in table.values() for row in rows]
    has_global = any(row.server_test.mean is not None for row in all_rows)
    if has_global:
        captions["test"] = "Server test: the global model on the server's test set."
    splits = [
        {"name": names.get(split, split), "table": table, "caption": captions[split]}
        for split, table in tables.items()
        if table
    ]
    return {
        "splits": splits,
        "several": repeated_word(groups),
        "global": has_global,
        "public": any(row.public_test.mean is not None for rows in tables["test"].values() for row in rows),
        "metrics": sorted({metric for table in tables.values() for metric in table}),
    }


def pool(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> dict[str, PredictionSet]:
    """Return for each group with predictions the concatenated test sets of all sites and runs, by label of group."""
    return {group.label: test_set for group in groups if (test_set := pool_group(group, tested)) is not None}


def _confusions(groups: Sequence[Group], pooled: Mapping[str, PredictionSet]) -> Meta:
    """Return the confusion matrices of the groups with predictions, and sentences about missing ones."""
    sentences, matrices = [], []
    missing = [group.label for group in groups if group.label not in pooled]
    if missing and pooled:
        sentences.append(f"There are no predictions on test images from {join_words(missing)}.")
    for group in groups:
        if group.label not in pooled:
            continue
        names = class_names(group.runs[0])
        if len(names) > MAX_MATRIX_CLASSES:
            sentences.append(f"The confusion matrix of {group.label} is left out: it has {len(names)} classes.")
            continue
        matrix = confusion_of(group.label, pooled[group.label])
        matrices.append({"name": group.label, "classes": names, "counts": matrix.counts, "shares": matrix.shares})
        empty = [name for name, row in zip(names, matrix.counts, strict=True) if not any(row)]
        if empty:
            sentences.append(f"{group.label}: no test image of {join_words(empty)}.")
    return {"confusions": matrices, "confusion_sentences": sentences}


def _reliability(groups: Sequence[Group], pooled: Mapping[str, PredictionSet]) -> Meta:
    """Return the reliability diagram and the calibration errors of the groups with predictions."""
    if not pooled:
        return {"reliability": None}
    errors = "; ".join(f"{name} {score(calibration_error(test_set))}" for name, test_set in pooled.items())
    curves = {name: reliability_of(name, test_set) for name, test_set in pooled.items()}
    styles = group_looks(groups)

    def draw(part: dict[str, Reliability]) -> Figure:
        return reliability_figure(list(part.values()), styles)

    picture = compare_svg(draw, curves, "reliability", f"Reliability diagram. ECE: {errors}.")
    return {"reliability": picture, "calibration": errors}


# ---- curves


class CurvePlan(NamedTuple):
    """Curves of one figure.

    Attributes:
        label: Label of the vertical axis.
        curves: Curves of the groups; None for a group without one.
        scope: Phrase about the images or sites behind the curves.
        bounded: True if the values are in [0, 1].
    """

    label: str
    curves: list[Curve | None]
    scope: str
    bounded: bool


def curves(groups: Sequence[Group]) -> Meta:
    """Return template variables with figures of scores and training loss by round; curves need at least two rounds."""
    band, labels = len(groups) <= MAX_BANDS, {group.label for group in groups}
    styles = group_looks(groups)
    styles |= {by_epoch(label): styles[label] for label in labels}
    pictures = []
    for index, plan in enumerate(_curve_plans(groups, band)):
        drawn = [curve for curve in plan.curves if curve is not None]
        if not drawn:
            continue
        text = f"{sentence(plan.label)} {plan.scope}."
        students = [curve for curve in drawn if curve.name not in labels]
        across = "round (student model: epoch)" if students else "round"
        phrases = [
            last_values([curve for curve in drawn if curve.name in labels]),
            last_values(students, "epoch {:.0f}"),
        ]
        words = " ".join([text, *filter(None, phrases)])
        picture = curves_svg(drawn, styles, plan.label, f"curve{index}", words, unit=plan.bounded, across=across)
        pictures.append({"svg": picture, "caption": text})
    over = repeated_word(groups)
    caption = "Lines: mean over the sites" + (f" and {over}" if over else "")
    caption += "; bands: minimum to maximum." if band else "."
    return {"pictures": pictures, "caption": caption}


def _curve_plans(groups: Sequence[Group], band: bool) -> list[CurvePlan]:
    """Return the curves of scores at the sites, on the server's and the public test set, and of the training loss."""
    names, metrics = output_names(groups), page_metrics(groups)
    plans = [
        CurvePlan(
            f"{metric_words(metric, names)}, mean of sites",
            [score_curve(group, metric, band) for group in groups],
            "on their test images",
            metric not in UNBOUNDED_METRICS,
        )
        for metric in metrics
    ]
    at_server = [(metric, GLOBAL, "server test", "on the server's test images") for metric in metrics[:1]]
    at_server += [(metric, PUBLIC, "public test", "on public test images") for metric in public_metrics(groups)]
    plans += [
        CurvePlan(
            f"{metric_words(metric, names)}, {test}",
            _at_server(groups, metric, where),
            scope,
            metric not in UNBOUNDED_METRICS,
        )
        for metric, where, test, scope in at_server
    ]
    losses = [loss_curve(group, band) for group in groups]
    return [*plans, CurvePlan("training loss", losses, "of the sites that trained in a round", False)]


def _at_server(groups: Sequence[Group], metric: str, where: str) -> list[Curve | None]:
    """Return the curves of the global models by round and of student models by epoch; None for a missing curve."""
    return [find(group, metric, where) for group in groups for find in (global_curve, epoch_curve)]


# ---- the rest


def image_counts(runs: Sequence[NamedRun]) -> list[Meta]:
    """Return template variables with the image counts of each data set and a figure of the training images."""
    return [
        {
            "name": sentence(counts.name),
            "classes": counts.classes,
            "splits": counts.splits,
            "picture": _counts_figure(counts, index),
        }
        for index, counts in enumerate(run_tables.image_counts(runs))
    ]


def _counts_figure(counts: run_tables.ImageCounts, index: int) -> Markup | None:
    """Return the figure of a data set's training images; None if all sites have the same counts or there are too many.

    Only the figure of the first data set is recorded for files.
    """
    training = counts.splits.get("training")
    if training and len(training) > 1 and len(set(training.values())) == 1:
        return None
    if not training or len(counts.classes) > MAX_CLASSES_DRAWN:
        return None
    totals = "; ".join(f"{site}: {sum(images)}" for site, images in list(training.items())[:20])
    more = f", and {len(training) - 20} more sites" if len(training) > 20 else ""
    with matplotlib.rc_context(EMBEDDED):
        figure = class_counts_figure(training, counts.classes)
    return svg(figure, f"images{index}", f"Training images at each site. {totals}{more}.", record=index == 0)


def settings(runs: Sequence[NamedRun]) -> Meta:
    """Return template variables with the settings and their origins, versions, and data hashes."""
    table = run_tables.settings(runs)
    return {
        "unlike": [entry for entry in table if entry.runs],
        "alike": [entry for entry in table if not entry.runs],
        "without": join_words([name for name, run in runs if not run.run.provenance.settings]),
        "surroundings": run_tables.surroundings(runs),
        "hashes": run_tables.data_hashes(runs),
    }
