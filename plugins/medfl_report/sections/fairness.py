"""Section on the AUC of men and women.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from medfl.types import Meta
from medfl.utils.formats import count, join_words, number
from medfl_report.groups import Group, by_seed
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import PredictionSet
from medfl_report.scores import class_names, value_over
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.fairness_measures import SEXES, SiteBySex, Subgroup, fold_table, over_sites, site_by_sex


class FairnessSection(TemplateSection):
    """Section of a report: AUC by sex."""

    template = "fairness.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template: the AUC by sex; None if no predictions have the sex."""
        return {"fairness": fairness} if (fairness := fairness_section(data.groups, data.of("class_auc"))) else None


def fairness_section(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> Meta | None:
    """Return the variables of the template; None if no run's predictions have the sex."""
    by_label = {group.label: _seeds(group, tested) for group in groups}
    rows = [_row(label, list(seeds.values())) for label, seeds in by_label.items() if seeds]
    if not rows:
        return None
    names = class_names(next(run for group in groups for run in group.runs if tested[str(run.folder)]))
    missing = [label for label, seeds in by_label.items() if not seeds]
    return {
        "rows": rows,
        "several": any(len(seeds) > 1 for seeds in by_label.values()),
        "positive": names[1] if len(names) == 2 else "",
        "details": [
            _detail(label if len(seeds) == 1 else f"{label}, seed {seed}", sites, len(names))
            for label, seeds in by_label.items()
            for seed, sites in seeds.items()
        ],
        "sentences": _sentences(rows, missing),
        "folds": fold_table(groups, tested),
    }


def _seeds(group: Group, tested: Mapping[str, PredictionSets]) -> dict[int, list[SiteBySex]]:
    """Return the sites by sex for each seed with predictions, each site with its folds pooled."""
    sites_by_seed = {}
    for seed, runs in by_seed(group).items():
        folds: dict[str, list[PredictionSet]] = {}
        for run in runs:
            for site, test_set in tested[str(run.folder)].items():
                if test_set.defined and test_set.sex:
                    folds.setdefault(site, []).append(test_set)
        if folds:
            sites_by_seed[seed] = [site_by_sex(site, parts) for site, parts in sorted(folds.items())]
    return sites_by_seed


def _row(label: str, seeds: Sequence[Sequence[SiteBySex]]) -> Meta:
    """Return a row of the table: each column over the seeds, and the smallest number of sites where it is defined."""
    means = [over_sites(sites) for sites in seeds]
    columns = {name: value_over([getattr(mean, name) for mean in means]) for name in (*SEXES, "average", "difference")}
    return {
        "label": label,
        **columns,
        "male_sites": min(mean.male_sites for mean in means),
        "female_sites": min(mean.female_sites for mean in means),
        "sites": max(len(sites) for sites in seeds),
    }


def _sentences(rows: Sequence[Meta], missing: Sequence[str]) -> list[str]:
    incomplete = [row["label"] for row in rows if not row["male_sites"] == row["female_sites"] == row["sites"]]
    sentences = [f"No predictions with the sex of the persons: {join_words(missing)}."] if missing else []
    if incomplete:
        sentences.append(
            f"In {join_words(incomplete)} the AUC of men or of women is not defined at every site. Men and women are "
            "then averaged over different sites, and their difference can be a difference between sites."
        )
    return sentences


def _detail(label: str, sites: Sequence[SiteBySex], classes: int) -> Meta:
    return {
        "label": label,
        "rows": [
            {
                "site": site.site,
                "cells": [(group.auc, _describe(group, classes)) for group in (site.male, site.female)],
                "difference": site.difference,
            }
            for site in sites
        ],
        "mean": over_sites(sites),
        "unknown": sum(site.unknown for site in sites),
    }


def _describe(group: Subgroup, classes: int) -> str:
    """Return the number of images, and of positive images or of classes that can be scored."""
    images = count(group.images, "image")
    if classes == 2:
        return f"{images}, {number(group.positives)} positive"
    return f"{images}, {group.classes} of {classes} classes"
