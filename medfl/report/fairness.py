"""By sex: whether models serve men and women alike.

A fold of a small site can lack one class among the women. So the predictions of all folds of a seed are pooled at each
site: within each fold's predictions every score is replaced by its rank, because the folds have different models, whose
scores can't be compared as they are. What a site's men and women get is the area under the ROC curve of their pooled
ranks. With one fold that is the plain area, which depends on the order of the scores only.

Source: Weng et al. 2025, FedSKD, equation 16 and the table of fairness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from medfl.contract import Meta
from medfl.metrics.auc import auc
from medfl.report.formats import count, listed, number
from medfl.report.gains import Sets, mean_known
from medfl.report.groups import Group
from medfl.report.pools import by_seed
from medfl.report.scores import class_names, value_over
from medfl.report.tested import Tested

SEXES = ("male", "female")
"""As data lists have them. Other entries are counted as not known."""


@dataclass(frozen=True)
class Subgroup:
    """The men or the women among a site's test images.

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
    ranks = torch.cat([rank_normalised(fold.probabilities) for fold in folds])
    return ranks, torch.cat([fold.labels for fold in folds])


def site_by_sex(site: str, folds: Sequence[Tested]) -> SiteBySex:
    """Men and women of a site, from its predictions in all folds of a seed.

    Args:
        site: Its name.
        folds: At least one, each with sexes, and without NaN.
    """
    ranks, labels = pool_ranks(folds)
    sexes = [sex.strip().lower() for fold in folds for sex in fold.sex]
    male, female = (_subgroup(ranks, labels, torch.tensor([one == sex for one in sexes])) for sex in SEXES)
    return SiteBySex(site, male, female, sum(one not in SEXES for one in sexes))


def over_sites(sites: Sequence[SiteBySex]) -> BySex:
    """The means over the sites; a subgroup that is not defined at a site is left out."""
    males, females = ([getattr(one, sex).auc for one in sites] for sex in SEXES)
    found = [sum(value is not None for value in values) for values in (males, females)]
    return BySex(mean_known(males), mean_known(females), *found)


def fairness_section(groups: Sequence[Group], tested: Mapping[str, Sets]) -> Meta | None:
    """The section; None where no run's predictions tell the sex."""
    found = {group.label: _seeds(group, tested) for group in groups}
    rows = [_row(label, list(seeds.values())) for label, seeds in found.items() if seeds]
    if not rows:
        return None
    names = class_names(next(run for group in groups for run in group.runs if tested[str(run.folder)]))
    missing = [label for label, seeds in found.items() if not seeds]
    return {
        "rows": rows,
        "several": any(len(seeds) > 1 for seeds in found.values()),
        "positive": names[1] if len(names) == 2 else "",
        "details": [
            _detail(label if len(seeds) == 1 else f"{label}, seed {seed}", sites, len(names))
            for label, seeds in found.items()
            for seed, sites in seeds.items()
        ],
        "sentences": _sentences(rows, missing),
    }


def _difference(male: float | None, female: float | None) -> float | None:
    return None if male is None or female is None else abs(male - female)


def _subgroup(ranks: torch.Tensor, labels: torch.Tensor, chosen: torch.Tensor) -> Subgroup:
    classes, own = ranks.shape[1], labels[chosen]
    counts = torch.bincount(own, minlength=classes)
    value = auc(ranks[chosen], own, classes)
    scored = int(((counts > 0) & (counts < len(own))).sum())
    return Subgroup(len(own), int(counts[1]), scored, None if math.isnan(value) else value)


def _seeds(group: Group, tested: Mapping[str, Sets]) -> dict[int, list[SiteBySex]]:
    """Seed to its sites, each with the folds that have predictions; without seeds that have none."""
    found = {}
    for seed, runs in by_seed(group).items():
        folds: dict[str, list[Tested]] = {}
        for run in runs:
            for site, one in tested[str(run.folder)].items():
                if one.defined and one.sex:
                    folds.setdefault(site, []).append(one)
        if folds:
            found[seed] = [site_by_sex(site, parts) for site, parts in sorted(folds.items())]
    return found


# ---- what the page shows


def _row(label: str, seeds: Sequence[Sequence[SiteBySex]]) -> Meta:
    """A line of the table: each column as mean and spread over the seeds, and at how few sites it is defined."""
    means = [over_sites(sites) for sites in seeds]
    columns = {name: value_over([getattr(one, name) for one in means]) for name in (*SEXES, "average", "difference")}
    return {
        "label": label,
        **columns,
        "male_sites": min(one.male_sites for one in means),
        "female_sites": min(one.female_sites for one in means),
        "sites": max(len(sites) for sites in seeds),
    }


def _sentences(rows: Sequence[Meta], missing: Sequence[str]) -> list[str]:
    unlike = [row["label"] for row in rows if not row["male_sites"] == row["female_sites"] == row["sites"]]
    found = [f"No predictions with the sex of the persons: {listed(missing)}."] if missing else []
    if unlike:
        found.append(
            f"In {listed(unlike)} not every site has what the AUC needs from men and from women. Men and women are "
            "then averaged over unlike sites, and their difference may be one between sites."
        )
    return found


def _detail(label: str, sites: Sequence[SiteBySex], classes: int) -> Meta:
    return {
        "label": label,
        "rows": [
            {
                "site": one.site,
                "cells": [(group.auc, _told(group, classes)) for group in (one.male, one.female)],
                "difference": one.difference,
            }
            for one in sites
        ],
        "mean": over_sites(sites),
        "unknown": sum(one.unknown for one in sites),
    }


def _told(group: Subgroup, classes: int) -> str:
    """How many images, and what they allow to score."""
    images = count(group.images, "image")
    if classes == 2:
        return f"{images}, {number(group.positives)} positive"
    return f"{images}, {group.classes} of {classes} classes"
