"""Section with the AUC of each class against the others, for each method and its reference.

The folds of a seed are pooled at each site as in `medfl_report.sections.fairness_measures`. Sites are averaged and not
pooled, because their class frequencies differ, and because the scores of their different models are not comparable.

A group is a set of runs of one method that differ only in seed and fold. A site exports its personal model if the
method trains one, else the global model.

Source: Weng et al. 2025, FedSKD, figure 5b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from markupsafe import Markup

from medfl.metrics.auc import binary_auc
from medfl.types import Meta
from medfl.utils.formats import none_if_nan
from medfl_report.curves import compare_svg, group_looks
from medfl_report.figures import gains_figure
from medfl_report.groups import Group, by_seed
from medfl_report.patient_tests import PredictionSets, RunPair
from medfl_report.predictions import PredictionSet
from medfl_report.scores import Baseline, MeanAndSpread, class_names, compared, reference_phrase, value_over
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.fairness_measures import pool_ranks
from medfl_report.site_comparison import mean_known, pair_up


class ClassesSection(TemplateSection):
    """Section of a report: AUC of each class."""

    template = "classes.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template: the comparison of each class; None with fewer than three classes."""
        classes = classes_section(data.groups, data.of("class_auc"), data.baseline)
        return {"classes": classes} if classes else None


@dataclass(frozen=True)
class ClassGain:
    """AUC of a class, each number as mean and standard deviation over the seeds.

    Attributes:
        name: Name of the class.
        sites: Number of sites with images of the class and of other classes; the smallest number of the seeds.
        base: AUC of the reference's exported models, mean over these sites.
        other: AUC of the method's exported models, mean over these sites.
        difference: other - base.
    """

    name: str
    sites: int
    base: MeanAndSpread
    other: MeanAndSpread
    difference: MeanAndSpread


def class_gains(
    group: Group, base: Group, tested: Mapping[str, PredictionSets], names: Sequence[str]
) -> list[ClassGain]:
    """Compare a group with its reference in each class; empty without predictions of both groups on the same data.

    Args:
        group: Runs of a method.
        base: Runs of the reference.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.
        names: Names of the classes.
    """
    seeds = [_site_aucs(pair_up(base, Group(group.label, tuple(runs))), tested) for runs in by_seed(group).values()]
    scored = [sites for sites in seeds if sites]
    if not scored:
        return []
    return [_gain(name, [[site[number] for site in sites] for sites in scored]) for number, name in enumerate(names)]


def classes_section(
    groups: Sequence[Group], tested: Mapping[str, PredictionSets], baseline: Baseline = None
) -> Meta | None:
    """Return the variables of the template; None with two classes, whose AUCs are equal, and without a comparison.

    Args:
        groups: Groups of the page.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.
        baseline: Label of the reference group, or a mapping from each group's label to the label of its reference; None
            for local training.
    """
    names = class_names(max((run for group in groups for run in group.runs), key=lambda run: run.holdings is not None))
    if len(names) < 3:
        return None
    pairs = compared(groups, baseline)
    methods = {group.label: gains for group, base in pairs if (gains := class_gains(group, base, tested, names))}
    if not methods:
        return None
    bases = {group.label: base.label for group, base in pairs if group.label in methods}
    base = reference_phrase(set(bases.values()))
    return {
        "methods": methods,
        "base": base,
        "bases": bases,
        "picture": _picture(methods, groups, base),
        "several": any(len(by_seed(group)) > 1 for group in groups if group.label in methods),
    }


def _picture(methods: Mapping[str, Sequence[ClassGain]], groups: Sequence[Group], base: str) -> Markup | None:
    """Return the figure of the differences in each class; None if no difference is defined."""
    points = {
        label: {gain.name: gain.difference.mean for gain in gains if gain.difference.mean is not None}
        for label, gains in methods.items()
    }
    if not any(points.values()):
        return None
    styles, label = group_looks(groups), f"difference in AUC from {base}"
    drawn = {name: gains for name, gains in points.items() if gains}
    words = f"Difference in AUC from {base} in each class; the table has the numbers."
    return compare_svg(lambda part: gains_figure(part, styles, label), drawn, "classes", words)


ClassAucs = list[tuple[float | None, float | None]]
"""Pairs (AUC of the reference, AUC of the method) of each class; None if an AUC is not defined."""


def _site_aucs(pairs: Sequence[RunPair], tested: Mapping[str, PredictionSets]) -> list[ClassAucs]:
    """Return the AUCs at each site that has predictions of both on the same images."""
    folds: dict[str, list[tuple[PredictionSet, PredictionSet]]] = {}
    for pair in pairs:
        before, after = tested[str(pair.alone.folder)], tested[str(pair.other.folder)]
        for site in sorted(before.keys() & after.keys()):
            both = before[site], after[site]
            if both[0].same_images(both[1]) and all(side.defined for side in both):
                folds.setdefault(site, []).append(both)
    return [_site([pool_ranks(side) for side in zip(*parts, strict=True)]) for parts in folds.values()]


def _site(sides: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> ClassAucs:
    """Return the AUCs of a site from (ranks, labels) of the reference and of the method."""
    classes = sides[0][0].shape[1]
    base, other = (
        [none_if_nan(binary_auc(ranks[:, number], labels == number)) for number in range(classes)]
        for ranks, labels in sides
    )
    return list(zip(base, other, strict=True))


def _gain(name: str, seeds: Sequence[ClassAucs]) -> ClassGain:
    """Return the row of a class from the AUCs of each site in each seed."""
    means = [[mean_known(side) for side in zip(*sites, strict=True)] for sites in seeds]
    gaps = [None if base is None or other is None else other - base for base, other in means]
    base, other = (value_over([both[side] for both in means]) for side in (0, 1))
    fewest = min(sum(area is not None for area, _ in sites) for sites in seeds)
    return ClassGain(name, fewest, base, other, value_over(gaps))
