"""Section on calibrated bundles: operating points, recalibration, prediction sets, decision curves, sample sizes.

``medfl calibrate`` chose everything on validation images; this section evaluates it on the test images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from markupsafe import Markup

from medfl.engine.runs.records import RunRecord
from medfl.records.calibration import Calibration
from medfl.records.calibration_evaluation import PART_COVERAGE, CalibrationEvaluation
from medfl.types import GLOBAL, Meta
from medfl.utils.formats import name_or_number, score
from medfl_report.calibration.calibration_words import chosen_words, recalibration_words, rule_words
from medfl_report.calibration.decision_curve import net_benefit, net_benefit_of_all
from medfl_report.calibration.evaluation import MIN_PATIENTS, evaluate_calibration, recalibrated
from medfl_report.calibration.validation_predictions import read_bundle_calibration
from medfl_report.evaluation.stored import bundle_of, read_evaluations
from medfl_report.figures import Look, looks, svg
from medfl_report.objectives.calibration import probability_bins
from medfl_report.objectives.drawing import calibration_figure, decision_figure
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet, pooled
from medfl_report.section import ReportData, TemplateSection

BEFORE, AFTER, ALL = "as trained", "recalibrated", "act for all"
"""Names of curves: the model's own and the recalibrated probabilities, and acting for every case."""

RATES = ("sensitivity", "specificity", "positive predictive value", "negative predictive value")
"""Rates at a threshold, in the order of the columns."""

THRESHOLDS = np.arange(1, 100) / 100
"""Thresholds of decision curves."""


@dataclass(frozen=True)
class CalibratedModel:
    """A calibrated model and its evaluation at a site.

    Attributes:
        name: Name of the row: the site, with the global model if that is calibrated.
        calibration: Calibration of the model.
        evaluation: Evaluation of the calibration on images of the site.
    """

    name: str
    calibration: Calibration
    evaluation: CalibrationEvaluation


@dataclass(frozen=True)
class CalibratedTest(CalibratedModel):
    """A calibrated model and its evaluation on test images of the run.

    Attributes:
        tested: The model's own predictions for the test images.
    """

    tested: PredictionSet


class CalibratedSection(TemplateSection):
    """Section of a report: calibrated bundles of the runs."""

    template = "calibrated_models.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None if no bundle of the runs is calibrated."""
        parts = []
        for place, (name, run) in enumerate(data.runs):
            if tests := read_calibrated_tests(run, data.predictions[str(run.folder)]):
                parts.append(_run_content(name, place, run, tests, data.names))
        return {"parts": parts, "min_patients": MIN_PATIENTS} if parts else None


def read_calibrated_tests(run: RunRecord, test_sets: PredictionSets) -> list[CalibratedTest]:
    """Return the test images of each calibrated bundle of a run: of the sites' bundles, then of the global one.

    Args:
        run: The run.
        test_sets: Maps each site to its test set with predictions of the model that the site exports.

    Raises:
        StoreError: If the file of a calibration is damaged, or of other weights.
    """
    tests = []
    for site, tested in test_sets.items():
        calibration = read_bundle_calibration(run.folder / "sites" / site)
        if calibration is not None:
            evaluation = evaluate_calibration(site, calibration, tested)
            tests.append(CalibratedTest(site, calibration, evaluation, tested))
    calibration = read_bundle_calibration(run.folder / GLOBAL)
    if calibration is not None:
        for site, tested in test_sets.items():
            if run.exported_kind(site) == GLOBAL:
                evaluation = evaluate_calibration(site, calibration, tested)
                tests.append(CalibratedTest(f"global model at {site}", calibration, evaluation, tested))
    return tests


def read_external_evaluations(run: RunRecord) -> list[CalibratedModel]:
    """Return the evaluations of a run's calibrated models at sites that did not train.

    Args:
        run: The run.

    Raises:
        StoreError: If a file of an evaluation or a calibration is damaged.
    """
    models = []
    for stored in read_evaluations(run):
        for model in stored.record.models:
            calibration = read_bundle_calibration(bundle_of(run, model))
            if stored.record.is_external and model.calibrated is not None and calibration is not None:
                name = f"{model.name} model at {stored.record.site}, external"
                models.append(CalibratedModel(name, calibration, model.calibrated))
    return models


def _run_content(name: str, place: int, run: RunRecord, tests: list[CalibratedTest], names: tuple[str, ...]) -> Meta:
    """Return the variables of the template for a run.

    Args:
        name: Name of the run on the page.
        place: Number of the run on the page, for the ids of figures.
        run: The run.
        tests: Calibrated models on test images of the run, at least one.
        names: Names of the outputs; may be empty.
    """
    models = [*tests, *read_external_evaluations(run)]
    at_sites = {test.name: test for test in tests if not test.name.startswith(f"{GLOBAL} model at ")}
    drawn = list((at_sites or {test.name: test for test in tests}).values())
    outputs = names if not run.objective.has_class_labels or not run.holdings else run.holdings.classes
    return {
        "name": name,
        "chosen": chosen_words([test.calibration for test in tests]),
        "points": [_point_row(model, outputs) for model in models if model.calibration.threshold is not None],
        "rates": RATES,
        "changes": [_change_row(model) for model in models if model.evaluation.scores],
        "score_names": list(dict.fromkeys(change.name for model in models for change in model.evaluation.scores)),
        "sets": [_set_row(model) for model in models if model.evaluation.set_size],
        "needed": [need for test in drawn for need in needed_rows(test)],
        "pictures": _pictures(drawn, place, outputs) if run.objective.has_class_labels else [],
        "is_survival": any(test.calibration.risk_threshold is not None for test in tests),
    }


def _point_row(model: CalibratedModel, names: tuple[str, ...]) -> Meta:
    """Return the row of a threshold: class, rule, threshold and rates."""
    threshold = model.calibration.threshold
    assert threshold is not None
    return {
        "site": model.name,
        "images": model.evaluation.images,
        "class_name": name_or_number(threshold.class_number, names),
        "rule": rule_words(threshold),
        "threshold": threshold.threshold,
        "rates": [model.evaluation.rate(name) for name in RATES],
    }


def _change_row(model: CalibratedModel) -> Meta:
    """Return the row of a recalibration: its values, and scores before and after, by name."""
    changes = {change.name: change for change in model.evaluation.scores}
    return {"site": model.name, "recalibration": recalibration_words(model.calibration), "changes": changes}


def _set_row(model: CalibratedModel) -> Meta:
    """Return the row of prediction sets: coverage of all images, and the lowest one of a class or number."""
    conformal = model.calibration.conformal_set or model.calibration.conformal_interval
    assert conformal is not None
    parts = [rate for rate in model.evaluation.rates if rate.name.startswith(PART_COVERAGE)]
    return {
        "site": model.name,
        "requested": conformal.coverage,
        "coverage": model.evaluation.rate("coverage"),
        "sizes": "; ".join(map(score, model.evaluation.set_size)),
        "lowest": min(parts, key=lambda rate: rate.value, default=None),
    }


def needed_rows(test: CalibratedTest) -> list[Meta]:
    """Return a row for each measured quantity of a test set, with the numbers of patients for each difference."""
    rows: dict[str, Meta] = {}
    for need in test.evaluation.needed:
        row = rows.setdefault(
            need.quantity, {"site": test.name, "quantity": need.quantity, "measured": need.measured, "cells": []}
        )
        row["cells"].append(need)
    return list(rows.values())


def _pictures(tests: list[CalibratedTest], place: int, names: tuple[str, ...]) -> list[Markup]:
    """Return the figures of a run: reliability before and after recalibration, and decision curves.

    The test images of all sites are pooled, each under the calibration of its site's model.

    Args:
        tests: Test images with calibrations, at least one.
        place: Number of the run on the page.
        names: Names of the classes; may be empty.
    """
    before = pooled({test.name: test.tested for test in tests})
    after = pooled({test.name: recalibrated(test.calibration, test.tested) for test in tests if test.tested.defined})
    if before is None or after is None:
        return []
    curves = {BEFORE: before, AFTER: after}
    styles = looks([BEFORE, AFTER, ALL], [ALL])
    threshold = tests[0].calibration.threshold
    number_of_class = 1 if before.objective.classes == 2 and threshold is None else None
    number_of_class = threshold.class_number if threshold is not None else number_of_class
    bins = {}
    for name, tested in curves.items():
        sure, predicted = tested.predictions.max(dim=1)
        happened = predicted == tested.targets
        if number_of_class is not None:
            sure, happened = tested.predictions[:, number_of_class], tested.targets == number_of_class
        bins[name] = probability_bins(sure.contiguous(), happened, tested.patients)
    what = "the predicted class" if number_of_class is None else name_or_number(number_of_class, names)
    pictures = [
        svg(
            calibration_figure(bins, styles),
            f"calibrated{place}",
            f"Observed frequency against predicted probability of {what}, as trained and recalibrated.",
        )
    ]
    if number_of_class is not None:
        pictures.append(_decision_picture(curves, number_of_class, styles, place, what))
    return pictures


def _decision_picture(
    curves: dict[str, PredictionSet], number_of_class: int, styles: dict[str, Look], place: int, what: str
) -> Markup:
    """Return the figure of the decision curves of a class."""
    benefits = {
        name: (
            THRESHOLDS,
            net_benefit(
                tested.predictions[:, number_of_class].numpy(),
                torch.eq(tested.targets, number_of_class).numpy(),
                THRESHOLDS,
            ),
        )
        for name, tested in curves.items()
    }
    present = torch.eq(curves[BEFORE].targets, number_of_class).numpy()
    benefits[ALL] = (THRESHOLDS, net_benefit_of_all(present, THRESHOLDS))
    return svg(
        decision_figure(benefits, styles),
        f"decisions{place}",
        f"Net benefit of acting on the probability of {what}, by threshold. Highest net benefit of the recalibrated "
        f"model: {benefits[AFTER][1].max():.3f}.",
    )
