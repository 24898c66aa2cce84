"""Section on the AUC of each finding, for images with several findings.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from medfl.types import Meta
from medfl.utils.formats import name_or_number
from medfl_report.groups import Group, output_names
from medfl_report.objectives.site_scores import first_seed, resampled, score_sites, sites_of, with_predictions
from medfl_report.patient_tests import PredictionSets
from medfl_report.section import ReportData, TemplateSection


class LabelAucsSection(TemplateSection):
    """Section of a report: AUC of each finding."""

    template = "label_aucs.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without predictions.

        They contain the AUC of each finding and its numbers of labelled and positive images.
        """
        return label_aucs_section(data.groups, data.of("label_auc"))


def label_aucs_section(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> Meta | None:
    """Return the variables of the template; None without predictions.

    Sites are averaged and not pooled, because the scales of their models differ.

    Args:
        groups: Groups of the page.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name; empty
            for runs of other objectives.
    """
    groups = with_predictions(groups, tested)
    pool = next(iter(first_seed(groups, tested).values()), None)
    if pool is None:
        return None
    rows, names = [], output_names(groups)
    for label in range(pool.targets.shape[1]):
        scores = {group.label: score_sites(group, tested, f"auc_{label}") for group in groups}
        targets = pool.targets[:, label]
        counts = {"labelled": int((~targets.isnan()).sum()), "present": int((targets == 1).sum())}
        rows.append({"name": name_or_number(label, names), "scores": scores, **counts})
    return {
        "rows": rows,
        "labels": [group.label for group in groups],
        "sites": sites_of(groups, tested),
        "images": len(pool.targets),
        "over": resampled(groups, tested),
    }
