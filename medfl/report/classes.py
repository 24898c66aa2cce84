"""Which classes gain: for each class the area under its ROC curve, alone against with the others.

The folds of a seed are pooled at each site as in `medfl.report.fairness`. Sites are averaged, not pooled: they hold
unlike shares of the classes, and have models of their own, whose scores can't be compared.

Source: Weng et al. 2025, FedSKD, figure 5b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from medfl.contract import Meta
from medfl.metrics.auc import binary_auc
from medfl.report.fairness import pool_ranks
from medfl.report.formats import known
from medfl.report.gains import Pair, Sets, mean_known, pair_up
from medfl.report.groups import Group
from medfl.report.pools import by_seed
from medfl.report.scores import Value, class_names, value_over
from medfl.report.selection import ALONE
from medfl.report.tested import Tested


@dataclass(frozen=True)
class ClassGain:
    """A class, each number as mean and spread over the seeds.

    Attributes:
        name: Of the class.
        sites: Number of sites that have images of the class and of others; the fewest of the seeds.
        alone: Mean over these sites of the area of the site's own training.
        other: The same of the model that the site takes home from the other method.
        difference: other - alone.
    """

    name: str
    sites: int
    alone: Value
    other: Value
    difference: Value


def class_gains(group: Group, alone: Group, tested: Mapping[str, Sets], names: Sequence[str]) -> list[ClassGain]:
    """Class by class, a group against the sites alone; empty without runs of both on the same data with predictions.

    Args:
        group: Runs of a method.
        alone: Runs of the sites alone.
        tested: Run folder, as text, to its test sets.
        names: Of the classes.
    """
    seeds = [_areas(pair_up(alone, Group(group.label, tuple(runs))), tested) for runs in by_seed(group).values()]
    found = [sites for sites in seeds if sites]
    if not found:
        return []
    return [_gain(name, [[site[number] for site in sites] for sites in found]) for number, name in enumerate(names)]


def classes_section(groups: Sequence[Group], tested: Mapping[str, Sets]) -> Meta | None:
    """The section; None with two classes, which have the same area, and where there is nothing to compare."""
    names = class_names(max((run for group in groups for run in group.runs), key=lambda run: "holdings" in run.summary))
    if len(names) < 3:
        return None
    bases = [group for group in groups if group.method == ALONE]
    others = [group for group in groups if group.method != ALONE]
    found = {
        group.label: gains
        for group in others
        for base in bases[:1]
        if (gains := class_gains(group, base, tested, names))
    }
    return {"methods": found, "several": any(len(by_seed(group)) > 1 for group in others)} if found else None


Areas = list[tuple[float | None, float | None]]
"""For each class the area alone and with the other method; both None where one is not defined."""


def _areas(pairs: Sequence[Pair], tested: Mapping[str, Sets]) -> list[Areas]:
    """The areas at each site that has predictions of both on the same images."""
    folds: dict[str, list[tuple[Tested, Tested]]] = {}
    for pair in pairs:
        before, after = tested[str(pair.alone.folder)], tested[str(pair.other.folder)]
        for site in sorted(before.keys() & after.keys()):
            both = before[site], after[site]
            if both[0].same_images(both[1]) and all(one.defined for one in both):
                folds.setdefault(site, []).append(both)
    return [_site([pool_ranks(side) for side in zip(*parts, strict=True)]) for parts in folds.values()]


def _site(sides: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Areas:
    classes = sides[0][0].shape[1]
    alone, other = (
        [known(binary_auc(ranks[:, number], labels == number)) for number in range(classes)] for ranks, labels in sides
    )
    return list(zip(alone, other, strict=True))


def _gain(name: str, seeds: Sequence[Areas]) -> ClassGain:
    means = [[mean_known(side) for side in zip(*sites, strict=True)] for sites in seeds]
    gaps = [None if alone is None or other is None else other - alone for alone, other in means]
    alone, other = (value_over([both[side] for both in means]) for side in (0, 1))
    fewest = min(sum(alone is not None for alone, _ in sites) for sites in seeds)
    return ClassGain(name, fewest, alone, other, value_over(gaps))
