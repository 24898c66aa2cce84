"""Section for regression: predictions against reference values, Bland-Altman plots, errors and bias.

A group is a set of runs of one method that differ only in seed and fold.

Source: Bland and Altman 1986, Statistical methods for assessing agreement between two methods of clinical measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from markupsafe import Markup

from medfl.types import Meta
from medfl_report.curves import compare_svg, group_looks
from medfl_report.groups import Group, output_names
from medfl_report.objectives.drawing import DRAWN, scatter_figure
from medfl_report.objectives.site_scores import first_seed, resampled, score_sites, several_seeds, with_predictions
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet
from medfl_report.section import ReportData, TemplateSection
from medfl_report.statistics import Interval

MAX_PICTURED = 3
"""Largest number of network outputs that have figures."""

WITHIN = 1.96
"""Half the width of the limits of agreement in standard deviations: 95 % of a normal distribution."""


class AgreementSection(TemplateSection):
    """Section of a report: agreement of predictions with reference values."""

    template = "agreement.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without predictions.

        They contain both figures of each output, and errors with intervals.
        """
        return agreement_section(data.groups, data.of("agreement"))


def agreement_section(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> Meta | None:
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
    named = output_names(groups)
    count = next(iter(pooled.values())).targets.shape[1]
    names = named or [f"output {number}" for number in range(count)]
    return {
        "numbers": [
            {
                "name": name,
                "rows": [_row(group, tested, pooled[group.label], number) for group in groups if group.label in pooled],
                "pictures": _pictures(groups, pooled, number, name) if number < MAX_PICTURED else [],
            }
            for number, name in enumerate(names)
        ],
        "named": bool(named),
        "pictured": MAX_PICTURED,
        "seeds": several_seeds(groups),
        "drawn": DRAWN if any(len(pool.rows) > DRAWN for pool in pooled.values()) else None,
        "over": resampled(groups, tested),
    }


def limits_of_agreement(differences: torch.Tensor) -> Interval:
    """Return the mean difference with the limits of agreement, mean -+ 1.96 SD (ddof = 1).

    Args:
        differences: Differences of N cases, (N,), N >= 1. The limits are NaN for a single difference.
    """
    mean = float(differences.mean())
    spread = float(differences.std()) if len(differences) > 1 else float("nan")
    return Interval(mean, mean - WITHIN * spread, mean + WITHIN * spread)


def _row(group: Group, tested: Mapping[str, PredictionSets], pool: PredictionSet, number: int) -> Meta:
    """Return the row of a group for one output: cases, absolute error, bias, limits of agreement."""
    return {
        "label": group.label,
        "cases": len(pool.rows),
        "error": score_sites(group, tested, partial(_absolute, number)),
        "bias": score_sites(group, tested, partial(_bias, number)),
        "limits": limits_of_agreement(pool.predictions[:, number] - pool.targets[:, number]),
    }


def _absolute(number: int, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute error of one output, for each weighting."""
    return (predictions[:, number] - targets[:, number]).abs() @ weights / weights.sum(0)


def _bias(number: int, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mean of prediction minus reference of one output, for each weighting."""
    return (predictions[:, number] - targets[:, number]) @ weights / weights.sum(0)


def _pictures(groups: Sequence[Group], pooled: Mapping[str, PredictionSet], number: int, what: str) -> list[Markup]:
    """Return the scatter plot and the Bland-Altman plot of one output."""
    looks = group_looks(groups)
    pairs = {name: (_values(pool.targets, number), _values(pool.predictions, number)) for name, pool in pooled.items()}
    differences = {
        name: ((reference + prediction) / 2, prediction - reference) for name, (reference, prediction) in pairs.items()
    }
    limits = {name: limits_of_agreement(torch.from_numpy(gaps)) for name, (_, gaps) in differences.items()}
    lines = {name: (limit.difference, limit.low, limit.high) for name, limit in limits.items()}
    means = "; ".join(
        f"{name}: {limit.difference:.3g} [{limit.low:.3g}, {limit.high:.3g}]" for name, limit in limits.items()
    )
    axes = ("mean of prediction and reference", "prediction - reference")
    return [
        compare_svg(
            lambda part: scatter_figure(part, looks, ("reference", "prediction")),
            pairs,
            f"against{number}",
            f"Predictions of {what} against reference values.",
        ),
        compare_svg(
            lambda part: scatter_figure(part, looks, axes, lines),
            differences,
            f"altman{number}",
            f"Differences of {what} against the mean of both. {means}.",
        ),
    ]


def _values(table: torch.Tensor, number: int) -> np.ndarray:
    return np.asarray(table[:, number].numpy())
