"""AUC of men and women at each site, pooled over folds and fold by fold.

A fold of a small site can lack a class among the women. Therefore the predictions of all folds of a seed are pooled at
each site. Within each fold every score is replaced by its rank, because the folds have different models, whose scores
are not comparable. The result is the area under the ROC curve of the pooled ranks. With one fold this is the usual AUC,
which depends only on the ranking. The AUC fold by fold uses only the folds in which it is defined.

A group is a set of runs of one method that differ only in seed and fold.

Source: Weng et al. 2025, FedSKD, equation 16 and the table of fairness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from medfl.metrics import METRICS
from medfl.types import Meta
from medfl_report.groups import Group, folds_among, repeated_word
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet
from medfl_report.scores import MeanAndSpread, value_over
from medfl_report.site_comparison import mean_known

SEXES = ("male", "female")
"""Values of the sex in data lists. Other entries count as unknown."""


@dataclass(frozen=True)
class Subgroup:
    """Subgroup of a site's test images, such as images of women.

    Attributes:
        images: Number of images.
        positives: Number of images of class 1, the positive class of two.
        classes: Number of classes with an AUC: each class of some but not all images.
        auc: AUC in [0, 1]; with more than two classes the mean over the classes with an AUC. None if it is not defined.
    """

    images: int
    positives: int
    classes: int
    auc: float | None


@dataclass(frozen=True)
class SiteBySex:
    """Test images of a site by sex.

    Attributes:
        site: Name of the site.
        male: Images of men.
        female: Images of women.
        unknown: Number of images of persons of unknown sex; they are used for the ranks only.
    """

    site: str
    male: Subgroup
    female: Subgroup
    unknown: int

    @property
    def difference(self) -> float | None:
        """Absolute difference of the two AUCs; None if one is not defined."""
        return _difference(self.male.auc, self.female.auc)


@dataclass(frozen=True)
class AucBySex:
    """AUC of men and women over the sites.

    Attributes:
        male: Mean AUC of men over the sites where it is defined; None without any.
        female: Mean AUC of women over the sites where it is defined; None without any.
        male_sites: Number of sites where the AUC of men is defined.
        female_sites: Number of sites where the AUC of women is defined.
    """

    male: float | None
    female: float | None
    male_sites: int
    female_sites: int

    @property
    def average(self) -> float | None:
        """Mean of the AUCs of men and women; None if one is not defined."""
        return None if self.male is None or self.female is None else (self.male + self.female) / 2

    @property
    def difference(self) -> float | None:
        """Absolute difference of the AUCs of men and women; None if one is not defined."""
        return _difference(self.male, self.female)


def rank_normalised(scores: torch.Tensor) -> torch.Tensor:
    """Return the normalised rank of each score in its column: (rank - 1/2) / N, ties with their mean rank.

    Args:
        scores: Scores, for N images and C classes, (N, C), floating, without NaN.

    Returns:
        Ranks in (0, 1), (N, C), float64.
    """
    columns = scores.T.contiguous()
    ordered = columns.sort(dim=1).values
    ends = [torch.searchsorted(ordered, columns, right=right) for right in (False, True)]
    return ((ends[0] + ends[1]).double() / (2 * max(len(scores), 1))).T


def pool_ranks(folds: Sequence[PredictionSet]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ranks within each fold, (N, C), and the labels, (N,), of all folds of a site, concatenated.

    Args:
        folds: Test sets of the folds, at least one, without NaN.
    """
    ranks = torch.cat([rank_normalised(fold.predictions) for fold in folds])
    return ranks, torch.cat([fold.targets for fold in folds])


def site_by_sex(site: str, folds: Sequence[PredictionSet]) -> SiteBySex:
    """Compute the AUC by sex of a site from its predictions in all folds of a seed.

    Args:
        site: Name of the site.
        folds: Test sets of the folds, at least one, with the sexes and without NaN.
    """
    ranks, labels = pool_ranks(folds)
    sexes = [sex.strip().lower() for fold in folds for sex in fold.sex]
    male, female = (subgroup(ranks, labels, torch.tensor([text == sex for text in sexes])) for sex in SEXES)
    return SiteBySex(site, male, female, sum(text not in SEXES for text in sexes))


def over_sites(sites: Sequence[SiteBySex]) -> AucBySex:
    """Return the means over the sites, without the sites where an AUC is not defined."""
    males, females = ([getattr(site, sex).auc for site in sites] for sex in SEXES)
    counts = [sum(value is not None for value in values) for values in (males, females)]
    return AucBySex(mean_known(males), mean_known(females), *counts)


def _difference(male: float | None, female: float | None) -> float | None:
    return None if male is None or female is None else abs(male - female)


def subgroup(ranks: torch.Tensor, labels: torch.Tensor, chosen: torch.Tensor) -> Subgroup:
    """Return the AUC and the counts of a subgroup.

    Args:
        ranks: Ranks of `pool_ranks`, or other scores, (N, C).
        labels: True classes, (N,), int64.
        chosen: True for the images of the subgroup, (N,), bool.
    """
    classes, targets = ranks.shape[1], labels[chosen]
    counts = torch.bincount(targets, minlength=classes)
    value = METRICS["auc"](ranks[chosen], targets, classes)
    scored = int(((counts > 0) & (counts < len(targets))).sum())
    return Subgroup(len(targets), int(counts[1]), scored, None if math.isnan(value) else value)


COLUMNS = (*SEXES, "average", "difference")
"""Columns of the tables, which are attributes of `AucBySex`: each sex, average and difference."""


@dataclass(frozen=True)
class FoldValue:
    """A number over the folds.

    Attributes:
        value: Mean and standard deviation over the folds where the number is defined.
        defined: Number of these folds.
        folds: Number of all folds with predictions.
    """

    value: MeanAndSpread
    defined: int
    folds: int


def fold_by_sex(tested: PredictionSets) -> AucBySex | None:
    """Return the AUC by sex of one fold, over the sites; None without predictions that have the sex.

    Args:
        tested: Maps each site to its test set in the fold.
    """
    parts = [
        site_by_sex(site, [test_set]) for site, test_set in sorted(tested.items()) if test_set.defined and test_set.sex
    ]
    return over_sites(parts) if parts else None


def over_folds(folds: Sequence[AucBySex]) -> dict[str, FoldValue]:
    """Return a mapping from each of `COLUMNS` to the column's value over the folds where the value is defined.

    Args:
        folds: AUC by sex of each fold, at least one.
    """
    columns = {name: [getattr(fold, name) for fold in folds] for name in COLUMNS}
    return {
        name: FoldValue(value_over(values), sum(value is not None for value in values), len(values))
        for name, values in columns.items()
    }


def fold_table(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> Meta | None:
    """Return the table fold by fold for the groups with several folds; None without any.

    Returns:
        Dictionary with the keys columns (`COLUMNS`), rows (by label of the group) and over (word for the repeated runs,
        such as ``folds``).
    """
    rows = {}
    for group in groups:
        folds = [fold for run in group.runs if (fold := fold_by_sex(tested[str(run.folder)])) is not None]
        if folds and folds_among(group.runs):
            rows[group.label] = over_folds(folds)
    return {"columns": COLUMNS, "rows": rows, "over": repeated_word(groups)} if rows else None
