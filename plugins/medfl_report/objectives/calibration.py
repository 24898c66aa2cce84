"""Section on the calibration of the predicted probability of a finding.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from medfl.types import Meta
from medfl.utils.formats import score
from medfl_report.curves import compare_svg, group_looks
from medfl_report.groups import Group
from medfl_report.objectives.drawing import ProbabilityBin, calibration_figure
from medfl_report.objectives.site_scores import first_seed, resampled, score_sites, several_seeds, with_predictions
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet
from medfl_report.section import ReportData, TemplateSection
from medfl_report.statistics import wilson_over_patients

BINS = 10
"""Number of bins of equal width in [0, 1]."""

METRICS = ("brier", "ece")
"""Metrics that measure calibration, shown in the section's table."""


class CalibrationSection(TemplateSection):
    """Section of a report: calibration of the probability of a finding."""

    template = "calibration.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without predictions.

        They contain calibration curves with counts, Brier score and calibration error.
        """
        return calibration_section(data.groups, data.of("calibration"))


def calibration_section(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> Meta | None:
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
    curves = {label: calibration(pool) for label, pool in pooled.items()}
    scores = {
        group.label: {metric: score_sites(group, tested, metric) for metric in METRICS}
        for group in groups
        if group.label in pooled
    }
    means = "; ".join(
        f"{label}: Brier score {score(mean.difference)}"
        for label, by_metric in scores.items()
        if (mean := by_metric["brier"].mean) is not None
    )
    styles = group_looks(groups)
    return {
        "curves": curves,
        "scores": scores,
        "metrics": METRICS,
        "picture": compare_svg(
            lambda part: calibration_figure(part, styles), curves, "calibration", f"Calibration. {means}."
        ),
        "over": resampled(groups, tested),
        "seeds": several_seeds(groups),
        "width": 1 / BINS,
    }


def calibration(tested: PredictionSet) -> list[ProbabilityBin]:
    """Return the bins of the calibration curve that have images.

    Args:
        tested: Test set whose predictions are the probabilities of absence and presence, (N, 2), for N images.
    """
    return probability_bins(tested.predictions[:, 1].contiguous(), tested.targets == 1, tested.patients)


def probability_bins(
    probabilities: torch.Tensor, present: torch.Tensor, patient_numbers: torch.Tensor | None
) -> list[ProbabilityBin]:
    """Return the bins of a calibration curve that have images.

    Args:
        probabilities: Predicted probabilities, (N,).
        present: True where the predicted event occurred, (N,), bool.
        patient_numbers: Patient number of each image, (N,), int64; None if each image is of another patient.
    """
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]
    places = torch.bucketize(probabilities, edges, right=True)
    bins = []
    for place in places.unique().tolist():
        inside = places == place
        patients = None if patient_numbers is None else patient_numbers[inside]
        low, high = wilson_over_patients(present[inside], patients)
        mean, share = float(probabilities[inside].mean()), float(present[inside].double().mean())
        images = int(inside.sum())
        bins.append(ProbabilityBin(place / BINS, images, mean, share, low, high, images / len(places)))
    return bins
