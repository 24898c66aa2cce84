"""The section about numbers that are predicted: how far they are from the truth, and whether that hangs on their size.

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
from medfl_report.patient_tests import Sets
from medfl_report.predictions import Tested
from medfl_report.section import ReportData, TemplateSection

PICTURED = 3
"""With more numbers than this only the first ones are drawn."""

WITHIN = 1.96
"""Standard deviations to both sides that hold 95 % of normal differences."""


class AgreementSection(TemplateSection):
    """Predictions against the truth."""

    template = "agreement.html"

    def content(self, data: ReportData) -> Meta | None:
        """Both pictures of each number, and errors with intervals."""
        return agreement_section(data.groups, data.of("agreement"))


def agreement_section(groups: Sequence[Group], tested: Mapping[str, Sets]) -> Meta | None:
    """The section; None without predictions.

    Args:
        groups: Of the page.
        tested: Run folder, as text, to its test sets, of runs about numbers.
    """
    groups = with_predictions(groups, tested)
    pooled = first_seed(groups, tested)
    if not pooled:
        return None
    known = output_names(groups)
    count = next(iter(pooled.values())).targets.shape[1]
    names = known or [f"number {number}" for number in range(count)]
    return {
        "numbers": [
            {
                "name": name,
                "rows": [_row(group, tested, pooled[group.label], number) for group in groups if group.label in pooled],
                "pictures": _pictures(groups, pooled, number, name) if number < PICTURED else [],
            }
            for number, name in enumerate(names)
        ],
        "named": bool(known),
        "pictured": PICTURED,
        "seeds": several_seeds(groups),
        "drawn": DRAWN if any(len(pool.rows) > DRAWN for pool in pooled.values()) else None,
        "over": resampled(groups, tested),
    }


def limits_of_agreement(differences: torch.Tensor) -> tuple[float, float, float]:
    """Mean of some differences, and the limits that hold 95 % of them if they are normal: mean -+ 1.96 SD (ddof = 1).

    Args:
        differences: (N,), N >= 2; with one there are no limits, which are NaN.
    """
    mean = float(differences.mean())
    spread = float(differences.std()) if len(differences) > 1 else float("nan")
    return mean, mean - WITHIN * spread, mean + WITHIN * spread


def _row(group: Group, tested: Mapping[str, Sets], pool: Tested, number: int) -> Meta:
    mean, low, high = limits_of_agreement(pool.judged[:, number] - pool.targets[:, number])
    return {
        "label": group.label,
        "cases": len(pool.rows),
        "error": score_sites(group, tested, partial(_absolute, number)),
        "bias": score_sites(group, tested, partial(_bias, number)),
        "limits": (mean, low, high),
    }


def _absolute(number: int, judged: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean absolute error of one of the numbers."""
    return (judged[:, number] - targets[:, number]).abs() @ weights / weights.sum(0)


def _bias(number: int, judged: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean of prediction minus truth of one of the numbers."""
    return (judged[:, number] - targets[:, number]) @ weights / weights.sum(0)


def _pictures(groups: Sequence[Group], pooled: Mapping[str, Tested], number: int, what: str) -> list[Markup]:
    looks = group_looks(groups)
    pairs = {name: (_values(pool.targets, number), _values(pool.judged, number)) for name, pool in pooled.items()}
    apart = {name: ((truth + guess) / 2, guess - truth) for name, (truth, guess) in pairs.items()}
    limits = {name: limits_of_agreement(torch.from_numpy(gaps)) for name, (_, gaps) in apart.items()}
    means = "; ".join(f"{name}: {mean:.3g} [{low:.3g}, {high:.3g}]" for name, (mean, low, high) in limits.items())
    axes = ("mean of prediction and truth", "prediction - truth")
    return [
        compare_svg(
            lambda part: scatter_figure(part, looks, ("truth", "prediction")),
            pairs,
            f"against{number}",
            f"Predictions of {what} against the truth.",
        ),
        compare_svg(
            lambda part: scatter_figure(part, looks, axes, limits),
            apart,
            f"altman{number}",
            f"Differences of {what} against the mean of both. {means}.",
        ),
    ]


def _values(table: torch.Tensor, number: int) -> np.ndarray:
    return np.asarray(table[:, number].numpy())
