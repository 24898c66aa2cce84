"""By sex, fold by fold: the plain areas within each fold, beside those of the pooled ranks.

A fold of a small site can lack one class among the women, or has no women at all. So a fold counts only where it is
defined, and how many these are is told with every mean.

Source: Weng et al. 2025, FedSKD, equation 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medfl.contract import Meta
from medfl.report.fairness import SEXES, BySex, over_sites, site_by_sex
from medfl.report.gains import Sets
from medfl.report.groups import Group, folds_among, several
from medfl.report.scores import Value, value_over

COLUMNS = (*SEXES, "average", "difference")
"""Of the table; attributes of `medfl.report.fairness.BySex`."""


@dataclass(frozen=True)
class OverFolds:
    """A number over the folds.

    Attributes:
        value: Mean and spread over the folds where it is defined.
        defined: Number of these.
        folds: Number of all folds with predictions.
    """

    value: Value
    defined: int
    folds: int


def fold_by_sex(tested: Sets) -> BySex | None:
    """Men and women of one fold, over the sites where they are defined; None without predictions that tell the sex.

    Args:
        tested: Site to its test set in the fold.
    """
    parts = [site_by_sex(site, [one]) for site, one in sorted(tested.items()) if one.defined and one.sex]
    return over_sites(parts) if parts else None


def over_folds(folds: Sequence[BySex]) -> dict[str, OverFolds]:
    """Each of `COLUMNS` over the folds where it is defined.

    Args:
        folds: At least one.
    """
    found = {name: [getattr(fold, name) for fold in folds] for name in COLUMNS}
    return {
        name: OverFolds(value_over(values), sum(value is not None for value in values), len(values))
        for name, values in found.items()
    }


def fold_table(groups: Sequence[Group], tested: Mapping[str, Sets]) -> Meta | None:
    """Label of each group of several folds to its row; None without any."""
    rows = {}
    for group in groups:
        folds = [one for run in group.runs if (one := fold_by_sex(tested[str(run.folder)])) is not None]
        if folds and folds_among(group.runs):
            rows[group.label] = over_folds(folds)
    return {"columns": COLUMNS, "rows": rows, "over": several(groups)} if rows else None
