"""Section for survival analysis: Kaplan-Meier curves of two risk groups, and C-index.

Risks of different models are not comparable. Therefore the cases are split into risk groups within each site, and the
groups are then pooled over the sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from medfl.objectives.survival import HIGHER
from medfl.types import Meta
from medfl_report.figures import looks, svg
from medfl_report.groups import Group
from medfl_report.objectives.drawing import survival_figure
from medfl_report.objectives.site_scores import resampled, score_sites, several_seeds, sites_of, with_predictions
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet
from medfl_report.section import ReportData, TemplateSection

GROUPS = ("lower risk", "higher risk")
"""Names of the risk groups: cases up to the cut-off of their site, and above it (`risk_groups`)."""

INSTANTS = 5
"""Number of times in the table of numbers at risk."""


class SurvivalSection(TemplateSection):
    """Section of a report: survival by risk group, and C-index."""

    template = "survival.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without predictions.

        They contain Kaplan-Meier curves, and the C-index of each site and of all together.
        """
        return survival_section(data.groups, data.of("kaplan_meier"))


def survival_section(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> Meta | None:
    """Return the variables of the template; None without predictions.

    Args:
        groups: Groups of the page.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name; empty
            for runs of other objectives.
    """
    groups = with_predictions(groups, tested)
    if not groups:
        return None
    scores = {group.label: score_sites(group, tested, "c_index", together=True) for group in groups}
    return {
        "scores": scores,
        "sites": sites_of(groups, tested),
        "pictures": [_drawn(group, tested, place) for place, group in enumerate(groups)],
        "over": resampled(groups, tested),
        "seeds": several_seeds(groups),
    }


def product_limit(times: np.ndarray, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Kaplan-Meier (product-limit) estimate of survival: product of 1 - d / n over the event times.

    At an event time, d of the n cases at risk have the event. A case that is censored at that time is still at risk.
    Without censoring the estimate is the share of cases without the event.

    Source: Kaplan and Meier 1958, Nonparametric estimation from incomplete observations.

    Args:
        times: Time of the event or of censoring, (N,), > 0.
        events: True if the event occurred, False if the time is censored, (N,), bool.

    Returns:
        Times from 0 to the last observed time, and the survival from each on, (M,) each.
    """
    instants = np.unique(times[events])
    counts = np.array([(times >= instant).sum() for instant in instants])
    happened = np.array([(times[events] == instant).sum() for instant in instants])
    shares = np.cumprod(1 - happened / counts) if len(instants) else np.empty(0)
    last = times.max(initial=0.0)
    return np.array([0.0, *instants, last]), np.array([1.0, *shares, shares[-1] if len(shares) else 1.0])


def at_risk(times: np.ndarray, instants: Sequence[float]) -> list[int]:
    """Return the number of cases at risk at each time."""
    return [int((times >= instant).sum()) for instant in instants]


def risk_groups(sets: Sequence[PredictionSet]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split the test cases into a lower- and a higher-risk group; return (times, events) of each.

    A site is split at the median risk of its validation cases, or of its training cases if it has none
    (`medfl.objectives.Survival.groups`). A site with neither uses the median of its test cases.

    Args:
        sets: Test sets, each with the predictions of one model. Test sets without numbers are left out.
    """
    parts: list[list[torch.Tensor]] = [[], []]
    for test_set in sets:
        if test_set.defined:
            risks = test_set.predictions[:, 0]
            higher = torch.tensor([group == HIGHER for group in test_set.groups])
            if not test_set.groups:
                higher = risks > risks.median()
            parts[0].append(test_set.targets[~higher])
            parts[1].append(test_set.targets[higher])
    joined = [torch.cat(part).numpy() if part else np.empty((0, 2)) for part in parts]
    return [(part[:, 0], part[:, 1] == 1) for part in joined]


def _drawn(group: Group, tested: Mapping[str, PredictionSets], place: int) -> Meta:
    """Return the figure of a group's first seed, with numbers at risk."""
    seed = group.runs[0].seed
    sets = [s for run in group.runs if run.seed == seed for _, s in sorted(tested[str(run.folder)].items())]
    parts = dict(zip(GROUPS, risk_groups(sets), strict=True))
    filled = {name: part for name, part in parts.items() if len(part[0])}
    if not filled:
        return {"label": group.label, "svg": None, "instants": [], "rows": []}
    last = max(float(times.max()) for times, _ in filled.values())
    instants = [last * step / (INSTANTS - 1) for step in range(INSTANTS)]
    curves = {name: product_limit(times, events) for name, (times, events) in filled.items()}
    ends = "; ".join(f"{name}: {shares[-1]:.3f} event-free at the end" for name, (_, shares) in curves.items())
    return {
        "label": group.label,
        "svg": svg(survival_figure(curves, looks(GROUPS)), f"survival{place}", f"{group.label}, survival. {ends}."),
        "instants": instants,
        "rows": [
            {"name": name, "cases": len(times), "events": int(events.sum()), "at_risk": at_risk(times, instants)}
            for name, (times, events) in filled.items()
        ],
    }
