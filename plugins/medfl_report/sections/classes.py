"""Which classes gain: for each class the area under its ROC curve, with a method against a baseline.

The folds of a seed are pooled at each site as in `medfl_report.sections.fairness_measures`. Sites are averaged, not
pooled: they hold unlike shares of the classes, and have models of their own, whose scores can't be compared.

Source: Weng et al. 2025, FedSKD, figure 5b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from markupsafe import Markup

from medfl.metrics.auc import binary_auc
from medfl.types import Meta
from medfl.utils.formats import known
from medfl_report.curves import compare_svg, group_looks
from medfl_report.figures import gains_figure
from medfl_report.gains import mean_known, pair_up
from medfl_report.groups import Group, by_seed
from medfl_report.patient_tests import Pair, Sets
from medfl_report.predictions import Tested
from medfl_report.scores import Baseline, Value, class_names, compared, over, value_over
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.fairness_measures import pool_ranks


class ClassesSection(TemplateSection):
    """Which classes gain."""

    template = "classes.html"

    def content(self, data: ReportData) -> Meta | None:
        """The comparison class by class, with three classes or more."""
        classes = classes_section(data.groups, data.of("class_auc"), data.baseline)
        return {"classes": classes} if classes else None


@dataclass(frozen=True)
class ClassGain:
    """A class, each number as mean and spread over the seeds.

    Attributes:
        name: Of the class.
        sites: Number of sites that have images of the class and of others; the fewest of the seeds.
        base: Mean over these sites of the area of the model that the site takes home from the baseline.
        other: The same of the other method.
        difference: other - base.
    """

    name: str
    sites: int
    base: Value
    other: Value
    difference: Value


def class_gains(group: Group, base: Group, tested: Mapping[str, Sets], names: Sequence[str]) -> list[ClassGain]:
    """Class by class, a group against a baseline; empty without runs of both on the same data with predictions.

    Args:
        group: Runs of a method.
        base: Runs of the baseline.
        tested: Run folder, as text, to its test sets.
        names: Of the classes.
    """
    seeds = [_areas(pair_up(base, Group(group.label, tuple(runs))), tested) for runs in by_seed(group).values()]
    scored = [sites for sites in seeds if sites]
    if not scored:
        return []
    return [_gain(name, [[site[number] for site in sites] for sites in scored]) for number, name in enumerate(names)]


def classes_section(groups: Sequence[Group], tested: Mapping[str, Sets], baseline: Baseline = None) -> Meta | None:
    """The section; None with two classes, which have the same area, and where there is nothing to compare.

    Args:
        groups: Of the page.
        tested: Run folder, as text, to its test sets.
        baseline: See `medfl_report.scores.compared`.
    """
    names = class_names(max((run for group in groups for run in group.runs), key=lambda run: run.holdings is not None))
    if len(names) < 3:
        return None
    pairs = compared(groups, baseline)
    methods = {group.label: gains for group, base in pairs if (gains := class_gains(group, base, tested, names))}
    if not methods:
        return None
    bases = {group.label: base.label for group, base in pairs if group.label in methods}
    base = over(set(bases.values()))
    return {
        "methods": methods,
        "base": base,
        "bases": bases,
        "picture": _picture(methods, groups, base),
        "several": any(len(by_seed(group)) > 1 for group in groups if group.label in methods),
    }


def _picture(methods: Mapping[str, Sequence[ClassGain]], groups: Sequence[Group], base: str) -> Markup | None:
    """The gains in each class where they are defined; None if none is."""
    points = {
        label: {gain.name: gain.difference.mean for gain in gains if gain.difference.mean is not None}
        for label, gains in methods.items()
    }
    if not any(points.values()):
        return None
    styles, label = group_looks(groups), f"AUC gained over {base}"
    drawn = {name: gains for name, gains in points.items() if gains}
    words = f"{label} in each class; the numbers stand in the tables."
    return compare_svg(lambda part: gains_figure(part, styles, label), drawn, "classes", words)


Areas = list[tuple[float | None, float | None]]
"""For each class the area of the baseline and of the other method; both None where one is not defined."""


def _areas(pairs: Sequence[Pair], tested: Mapping[str, Sets]) -> list[Areas]:
    """The areas at each site that has predictions of both on the same images."""
    folds: dict[str, list[tuple[Tested, Tested]]] = {}
    for pair in pairs:
        before, after = tested[str(pair.alone.folder)], tested[str(pair.other.folder)]
        for site in sorted(before.keys() & after.keys()):
            both = before[site], after[site]
            if both[0].same_images(both[1]) and all(side.defined for side in both):
                folds.setdefault(site, []).append(both)
    return [_site([pool_ranks(side) for side in zip(*parts, strict=True)]) for parts in folds.values()]


def _site(sides: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Areas:
    classes = sides[0][0].shape[1]
    base, other = (
        [known(binary_auc(ranks[:, number], labels == number)) for number in range(classes)] for ranks, labels in sides
    )
    return list(zip(base, other, strict=True))


def _gain(name: str, seeds: Sequence[Areas]) -> ClassGain:
    means = [[mean_known(side) for side in zip(*sites, strict=True)] for sites in seeds]
    gaps = [None if base is None or other is None else other - base for base, other in means]
    base, other = (value_over([both[side] for both in means]) for side in (0, 1))
    fewest = min(sum(area is not None for area, _ in sites) for sites in seeds)
    return ClassGain(name, fewest, base, other, value_over(gaps))
