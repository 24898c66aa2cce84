"""Section on external validation: scores of the runs' models at sites that did not train them."""

from __future__ import annotations

import math

from medfl.records.evaluation import ScoreEstimate
from medfl.types import GLOBAL, Meta
from medfl.utils.formats import MISSING, score
from medfl_report.evaluation.external_scores import (
    SITES_MODELS,
    ExternalRow,
    external_rows,
    mean_over_sites,
    other_evaluations,
)
from medfl_report.paper.page_tables import TableCell, cell
from medfl_report.scores import page_metrics
from medfl_report.section import ReportData, TemplateSection


class ExternalSection(TemplateSection):
    """Section of a report: external validation."""

    template = "external.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None if no model of the runs was evaluated after the run.

        They contain a table for each key metric, and sentences on evaluations that are not external.
        """
        runs = {group.label: [*group.runs, *data.unseen.get(group.label, ())] for group in data.groups}
        rows, others = external_rows(runs), other_evaluations(runs)
        if not rows and not others:
            return None
        sites = sorted({part.site for row in rows for part in row.sites})
        metrics = [name for name in page_metrics(data.groups) if rows]
        return {
            "sites": sites,
            "counts": [_count_note(rows, site) for site in sites],
            "tables": {metric: [_table_row(row, metric, sites) for row in rows] for metric in metrics},
            "several": any(len(part.runs) > 1 for row in rows for part in row.sites),
            "others": others,
        }


def _table_row(row: ExternalRow, metric: str, sites: list[str]) -> list[str | TableCell]:
    """Return the cells of a row: the method, the mean over the sites, and the score at each site."""
    names = {GLOBAL: row.label, SITES_MODELS: f"{row.label}, mean of the sites' models"}
    estimates = row.by_site(metric)
    mean = mean_over_sites(list(estimates.values()))
    name = names.get(row.model, f"{row.label}, model of {row.model}")
    return [name, estimate_cell(mean), *(estimate_cell(estimates.get(site)) for site in sites)]


def estimate_cell(estimate: ScoreEstimate | None) -> TableCell:
    """Return a cell with a score, and its interval as a note; a dash for None."""
    if estimate is None:
        return cell(MISSING)
    if math.isnan(estimate.low):
        return cell(score(estimate.value))
    return cell(score(estimate.value), f"{score(estimate.low)} to {score(estimate.high)}")


def _count_note(rows: list[ExternalRow], site: str) -> str:
    """Return the number of images and patients at a site."""
    part = next(part for row in rows for part in row.sites if part.site == site)
    return f"{part.images} images" + ("" if part.patients is None else f" of {part.patients} patients")
