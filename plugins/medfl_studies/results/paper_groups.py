"""Scores of groups of persons for the tables and figures of papers: by scanning centre, and by sex."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from medfl.utils.formats import MISSING
from medfl_report.groups import Group
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import read_prediction_sets
from medfl_report.sections.centres import centre_gains
from medfl_report.sections.fairness import fairness_section
from medfl_studies.records.paper_items import PaperGroups, PaperItem
from medfl_studies.results.page_formats import cell, table
from medfl_studies.results.paper_orders import ItemResult, method_groups


def group_table(result: ItemResult, chosen: PaperGroups) -> str:
    """Return a table of AUCs of groups of persons; empty without predictions that have the centre or the sex.

    The AUC is computed from ranks within each site and fold, as in a run's report, and given in the paper's unit.

    Args:
        result: The table or figure and its runs.
        chosen: The groups.
    """
    groups = method_groups(result.item, result.results, chosen.data)
    tested = {str(run.folder): read_prediction_sets(run) for group in groups.values() for run in group.runs}
    format_auc = partial(_format, result.item)
    return _by_sex(groups, tested, format_auc) if chosen.kind == "sex" else _by_centre(groups, tested, format_auc)


def _format(item: PaperItem, value: float | None, sign: str = "") -> str:
    """Return an AUC or a difference of AUCs in the paper's unit and with its number of decimals."""
    return cell(value if value is None or not item.percent else 100 * value, sign, item.decimals)


def _by_sex(groups: Mapping[str, Group], tested: Mapping[str, PredictionSets], format_auc: Callable[..., str]) -> str:
    """Return the AUC of men and women, their mean and the gap between them, for each method."""
    section = fairness_section(list(groups.values()), tested)
    if section is None:
        return ""
    columns = ("male", "female", "average", "difference")
    lines = [[row["label"], *(format_auc(row[name].mean) for name in columns)] for row in section["rows"]]
    return table(["method", "men", "women", "mean", "gap"], lines)


def _by_centre(
    groups: Mapping[str, Group], tested: Mapping[str, PredictionSets], format_auc: Callable[..., str]
) -> str:
    """Return the AUC of the first method and of the second at each centre, with their difference.

    Effects are corrected for the number of centres. Centres whose persons are all of one class are named below.
    """
    if len(groups) < 2:
        return ""
    method, reference = list(groups.values())[:2]
    gains = centre_gains(method, reference, tested)
    if gains is None:
        return ""
    comparison, without = gains
    lines = [
        [
            row.name,
            MISSING if row.images is None else f"{row.images}",
            format_auc(row.alone),
            format_auc(row.other),
            format_auc(row.difference, "+"),
            MISSING if row.low is None else f"{format_auc(row.low, '+')} to {format_auc(row.high, '+')}",
            row.effect,
        ]
        for row in comparison.rows
    ]
    head = [
        "centre",
        "persons",
        reference.label,
        method.label,
        f"difference of {method.label}",
        "95 % interval",
        "effect",
    ]
    left = ", ".join(f"{centre.name} ({sum(centre.images)})" for centre in without)
    return table(head, lines) + (f"\n\nCentres with persons of one class only: {left}." if left else "")
