"""The section of a report about men and women: numbers and sentences for its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from medfl.types import Meta
from medfl.utils.formats import count, listed, number
from medfl_report.groups import Group, by_seed
from medfl_report.patient_tests import Sets
from medfl_report.predictions import Tested
from medfl_report.scores import class_names, value_over
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.fairness_measures import SEXES, SiteBySex, Subgroup, fold_table, over_sites, site_by_sex


class FairnessSection(TemplateSection):
    """Scores of men and women."""

    template = "fairness.html"

    def content(self, data: ReportData) -> Meta | None:
        """The scores by sex, where predictions tell it."""
        return {"fairness": fairness} if (fairness := fairness_section(data.groups, data.of("class_auc"))) else None


def fairness_section(groups: Sequence[Group], tested: Mapping[str, Sets]) -> Meta | None:
    """The section; None where no run's predictions tell the sex."""
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


def _seeds(group: Group, tested: Mapping[str, Sets]) -> dict[int, list[SiteBySex]]:
    """Seed to its sites, each with the folds that have predictions; without seeds that have none."""
    sites_by_seed = {}
    for seed, runs in by_seed(group).items():
        folds: dict[str, list[Tested]] = {}
        for run in runs:
            for site, test_set in tested[str(run.folder)].items():
                if test_set.defined and test_set.sex:
                    folds.setdefault(site, []).append(test_set)
        if folds:
            sites_by_seed[seed] = [site_by_sex(site, parts) for site, parts in sorted(folds.items())]
    return sites_by_seed


def _row(label: str, seeds: Sequence[Sequence[SiteBySex]]) -> Meta:
    """A line of the table: each column as mean and spread over the seeds, and at how few sites it is defined."""
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
    unlike = [row["label"] for row in rows if not row["male_sites"] == row["female_sites"] == row["sites"]]
    sentences = [f"No predictions with the sex of the persons: {listed(missing)}."] if missing else []
    if unlike:
        sentences.append(
            f"In {listed(unlike)} not every site has what the AUC needs from men and from women. Men and women are "
            "then averaged over unlike sites, and their difference may be one between sites."
        )
    return sentences


def _detail(label: str, sites: Sequence[SiteBySex], classes: int) -> Meta:
    return {
        "label": label,
        "rows": [
            {
                "site": site.site,
                "cells": [(group.auc, _told(group, classes)) for group in (site.male, site.female)],
                "difference": site.difference,
            }
            for site in sites
        ],
        "mean": over_sites(sites),
        "unknown": sum(site.unknown for site in sites),
    }


def _told(group: Subgroup, classes: int) -> str:
    """How many images, and what they allow to score."""
    images = count(group.images, "image")
    if classes == 2:
        return f"{images}, {number(group.positives)} positive"
    return f"{images}, {group.classes} of {classes} classes"
