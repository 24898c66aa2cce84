"""The section about survival: whether those with the higher risk have the event earlier.

Risks of unlike models can't be compared, so cases are split into groups within each site, and the groups of the sites
are then put together.
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
from medfl_report.patient_tests import Sets
from medfl_report.predictions import Tested
from medfl_report.section import ReportData, TemplateSection

GROUPS = ("lower risk", "higher risk")
"""Cases up to a median risk of their site's model, and above it (`risk_groups`)."""

INSTANTS = 5
"""Times at which the table says how many are at risk."""


class SurvivalSection(TemplateSection):
    """Survival by risk group."""

    template = "survival.html"

    def content(self, data: ReportData) -> Meta | None:
        """Product-limit curves of two risk groups, and the C-index of each site and of all together."""
        return survival_section(data.groups, data.of("kaplan_meier"))


def survival_section(groups: Sequence[Group], tested: Mapping[str, Sets]) -> Meta | None:
    """The section; None without predictions.

    Args:
        groups: Of the page.
        tested: Run folder, as text, to its test sets, of runs about survival.
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
    """The share that is without the event, from each instant on at which one had it: product of 1 - d / n.

    Of n at risk at an instant, d have the event then; whose time is cut short at that instant, is still at risk.
    Without cut times it is the plain share of those who have not had the event yet.

    Source: Kaplan and Meier 1958, Nonparametric estimation from incomplete observations.

    Args:
        times: (N,), > 0.
        events: (N,), bool: whether the time ended with the event.

    Returns:
        Instants, from 0 to the last time under observation, and the share from each on; (M,) each.
    """
    instants = np.unique(times[events])
    counts = np.array([(times >= instant).sum() for instant in instants])
    happened = np.array([(times[events] == instant).sum() for instant in instants])
    shares = np.cumprod(1 - happened / counts) if len(instants) else np.empty(0)
    last = times.max(initial=0.0)
    return np.array([0.0, *instants, last]), np.array([1.0, *shares, shares[-1] if len(shares) else 1.0])


def at_risk(times: np.ndarray, instants: Sequence[float]) -> list[int]:
    """How many are under observation at each instant, or longer."""
    return [int((times >= instant).sum()) for instant in instants]


def risk_groups(sets: Sequence[Tested]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Times and events of the cases with the lower risks, and of those with the higher ones.

    Where the line is, the model's validation or training cases say (`medfl.objectives.Survival.groups`), or where a
    site has none that can say it, the median of its test set.

    Args:
        sets: Each under one model; those without numbers are left out.
    """
    parts: list[list[torch.Tensor]] = [[], []]
    for test_set in sets:
        if test_set.defined:
            risks = test_set.judged[:, 0]
            higher = torch.tensor([group == HIGHER for group in test_set.groups])
            if not test_set.groups:
                higher = risks > risks.median()
            parts[0].append(test_set.targets[~higher])
            parts[1].append(test_set.targets[higher])
    joined = [torch.cat(part).numpy() if part else np.empty((0, 2)) for part in parts]
    return [(part[:, 0], part[:, 1] == 1) for part in joined]


def _drawn(group: Group, tested: Mapping[str, Sets], place: int) -> Meta:
    """The picture of a group's first seed, with numbers at risk."""
    seed = group.runs[0].seed
    sets = [s for run in group.runs if run.seed == seed for _, s in sorted(tested[str(run.folder)].items())]
    parts = dict(zip(GROUPS, risk_groups(sets), strict=True))
    filled = {name: part for name, part in parts.items() if len(part[0])}
    if not filled:
        return {"label": group.label, "svg": None, "instants": [], "rows": []}
    last = max(float(times.max()) for times, _ in filled.values())
    instants = [last * step / (INSTANTS - 1) for step in range(INSTANTS)]
    curves = {name: product_limit(times, events) for name, (times, events) in filled.items()}
    ends = "; ".join(f"{name}: {shares[-1]:.3f} without the event in the end" for name, (_, shares) in curves.items())
    return {
        "label": group.label,
        "svg": svg(survival_figure(curves, looks(GROUPS)), f"survival{place}", f"{group.label}, survival. {ends}."),
        "instants": instants,
        "rows": [
            {"name": name, "cases": len(times), "events": int(events.sum()), "at_risk": at_risk(times, instants)}
            for name, (times, events) in filled.items()
        ],
    }
