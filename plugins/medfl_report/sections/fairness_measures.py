"""Whether models serve men and women alike, in numbers.

A fold of a small site can lack one class among the women. So the predictions of all folds of a seed are pooled at each
site: within each fold's predictions every score is replaced by its rank, because the folds have different models, whose
scores can't be compared as they are. What a site's men and women get is the area under the ROC curve of their pooled
ranks. With one fold that is the plain area, which depends on the order of the scores only. Beside them stand the plain
areas fold by fold; a fold counts only where it is defined, and how many these are is told with every mean.

Source: Weng et al. 2025, FedSKD, equation 16 and the table of fairness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from medfl.metrics import METRICS
from medfl.types import Meta
from medfl_report.gains import mean_known
from medfl_report.groups import Group, folds_among, several
from medfl_report.patient_tests import Sets
from medfl_report.predictions import Tested
from medfl_report.scores import Value, value_over

SEXES = ("male", "female")
"""As data lists have them. Other entries are counted as not known."""


@dataclass(frozen=True)
class Subgroup:
    """Some of a site's test images.

    Attributes:
        images: Their number.
        positives: Those of class 1, the positive one of two.
        classes: Classes that some, but not all of the images have: those that can be scored.
        auc: In [0, 1]; of more than two classes the mean over those that can be scored; None without any.
    """

    images: int
    positives: int
    classes: int
    auc: float | None


@dataclass(frozen=True)
class SiteBySex:
    """A site's test images by sex.

    Attributes:
        site: Its name.
        male: The men.
        female: The women.
        unknown: Images of persons whose sex is not known; they count in the ranks only.
    """

    site: str
    male: Subgroup
    female: Subgroup
    unknown: int

    @property
    def difference(self) -> float | None:
        """How far the two areas are apart; None where one is not defined."""
        return _difference(self.male.auc, self.female.auc)


@dataclass(frozen=True)
class BySex:
    """Men and women over the sites.

    Attributes:
        male: Mean area over the sites where it is defined; None without any.
        female: The same.
        male_sites: Number of those sites.
        female_sites: The same.
    """

    male: float | None
    female: float | None
    male_sites: int
    female_sites: int

    @property
    def average(self) -> float | None:
        """The mean of men and women."""
        return None if self.male is None or self.female is None else (self.male + self.female) / 2

    @property
    def difference(self) -> float | None:
        """How far men and women are apart."""
        return _difference(self.male, self.female)


def rank_normalised(scores: torch.Tensor) -> torch.Tensor:
    """The place of each score among those of its column: (rank - 1/2) / N, ties with their mean rank.

    Args:
        scores: (N, C), floating, without NaN.

    Returns:
        (N, C), float64, in (0, 1).
    """
    columns = scores.T.contiguous()
    ordered = columns.sort(dim=1).values
    ends = [torch.searchsorted(ordered, columns, right=right) for right in (False, True)]
    return ((ends[0] + ends[1]).double() / (2 * max(len(scores), 1))).T


def pool_ranks(folds: Sequence[Tested]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranks (N, C) within each fold, and labels (N,), of all folds of a site one after the other.

    Args:
        folds: At least one, each without NaN.
    """
    ranks = torch.cat([rank_normalised(fold.judged) for fold in folds])
    return ranks, torch.cat([fold.targets for fold in folds])


def site_by_sex(site: str, folds: Sequence[Tested]) -> SiteBySex:
    """Men and women of a site, from its predictions in all folds of a seed.

    Args:
        site: Its name.
        folds: At least one, each with sexes, and without NaN.
    """
    ranks, labels = pool_ranks(folds)
    sexes = [sex.strip().lower() for fold in folds for sex in fold.sex]
    male, female = (subgroup(ranks, labels, torch.tensor([text == sex for text in sexes])) for sex in SEXES)
    return SiteBySex(site, male, female, sum(text not in SEXES for text in sexes))


def over_sites(sites: Sequence[SiteBySex]) -> BySex:
    """The means over the sites; a subgroup that is not defined at a site is left out."""
    males, females = ([getattr(site, sex).auc for site in sites] for sex in SEXES)
    counts = [sum(value is not None for value in values) for values in (males, females)]
    return BySex(mean_known(males), mean_known(females), *counts)


def _difference(male: float | None, female: float | None) -> float | None:
    return None if male is None or female is None else abs(male - female)


def subgroup(ranks: torch.Tensor, labels: torch.Tensor, chosen: torch.Tensor) -> Subgroup:
    """The area and counts of some of the images.

    Args:
        ranks: (N, C), as `pool_ranks` gives them, or other scores.
        labels: (N,), int64.
        chosen: (N,), bool: the images that belong to the subgroup.
    """
    classes, own = ranks.shape[1], labels[chosen]
    counts = torch.bincount(own, minlength=classes)
    value = METRICS["auc"](ranks[chosen], own, classes)
    scored = int(((counts > 0) & (counts < len(own))).sum())
    return Subgroup(len(own), int(counts[1]), scored, None if math.isnan(value) else value)


COLUMNS = (*SEXES, "average", "difference")
"""Of the table; attributes of `medfl_report.sections.fairness_measures.BySex`."""


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
    parts = [
        site_by_sex(site, [test_set]) for site, test_set in sorted(tested.items()) if test_set.defined and test_set.sex
    ]
    return over_sites(parts) if parts else None


def over_folds(folds: Sequence[BySex]) -> dict[str, OverFolds]:
    """Each of `COLUMNS` over the folds where it is defined.

    Args:
        folds: At least one.
    """
    columns = {name: [getattr(fold, name) for fold in folds] for name in COLUMNS}
    return {
        name: OverFolds(value_over(values), sum(value is not None for value in values), len(values))
        for name, values in columns.items()
    }


def fold_table(groups: Sequence[Group], tested: Mapping[str, Sets]) -> Meta | None:
    """Label of each group of several folds to its row; None without any."""
    rows = {}
    for group in groups:
        folds = [fold for run in group.runs if (fold := fold_by_sex(tested[str(run.folder)])) is not None]
        if folds and folds_among(group.runs):
            rows[group.label] = over_folds(folds)
    return {"columns": COLUMNS, "rows": rows, "over": several(groups)} if rows else None
