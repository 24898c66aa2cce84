"""Section with the AUC of each scanning centre, for each method and its reference.

A site may contain images of several centres. The folds of a seed are pooled at each site as in
`medfl_report.sections.fairness_measures`, so that every person counts once, and each score becomes its rank among the
scores of the site in its fold. The images of a centre are then pooled over the sites. A centre whose images are all of
one class has no AUC; the section lists its image counts.

A group is a set of runs of one method that differ only in seed and fold.

Source: Weng et al. 2025, FedSKD, figure 5a.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from markupsafe import Markup

from medfl.data.pooled import concatenate_patients
from medfl.objectives import Multiclass
from medfl.types import Meta
from medfl.utils.formats import count, join_words, none_if_nan, number, signed
from medfl_report.curves import compare_svg, group_looks
from medfl_report.figures import gains_figure
from medfl_report.groups import Group, by_seed
from medfl_report.patient_tests import UNDEFINED, PatientTest, PredictionSets, RunPair
from medfl_report.predictions import PredictionSet
from medfl_report.scores import Baseline, class_names, compared, reference_phrase
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.fairness_measures import pool_ranks
from medfl_report.sections.site_results import EffectAxis, record_forest
from medfl_report.site_comparison import (
    TOO_FEW_PATIENTS,
    Comparison,
    ComparisonRow,
    add_patient_test,
    correct_family,
    mean_known,
    mean_row,
    pair_up,
    row_over_runs,
    worst_row,
)
from medfl_report.statistics import ExchangeDistribution, combine_p, exchange_models, mean_exchange, paired_bootstrap

METRIC = "auc"
"""Metric of the section."""


MIN_PATIENTS = 5
"""Minimum number of patients of each class for an interval and a test: resamples of fewer patients hardly differ."""


@dataclass(frozen=True)
class ExcludedCentre:
    """Centre whose images are all of one class.

    Attributes:
        name: Name of the centre.
        images: Number of images of each class.
    """

    name: str
    images: tuple[int, ...]


@dataclass(frozen=True)
class RankedPredictions:
    """Predictions of a method and its reference for the same images, as ranks within each site and fold.

    Attributes:
        before: Ranks of the reference's scores, (N, C), float64.
        after: Ranks of the method's scores, (N, C), float64.
        labels: True classes, (N,), int64.
        centre: Centre of each image, "" if unknown.
        patients: Patient number of each image, (N,), int64; None if each image counts as one patient.
    """

    before: torch.Tensor
    after: torch.Tensor
    labels: torch.Tensor
    centre: tuple[str, ...]
    patients: torch.Tensor | None = None

    def at(self, name: str) -> RankedPredictions:
        """Return the subset of the images of a centre."""
        chosen = torch.tensor([centre == name for centre in self.centre], dtype=torch.bool)
        return RankedPredictions(
            before=self.before[chosen],
            after=self.after[chosen],
            labels=self.labels[chosen],
            centre=tuple(centre for centre in self.centre if centre == name),
            patients=None if self.patients is None else self.patients[chosen],
        )


def centre_gains(
    group: Group, base: Group, tested: Mapping[str, PredictionSets]
) -> tuple[Comparison, list[ExcludedCentre]] | None:
    """Compare a group with its reference at each centre.

    Args:
        group: Runs of a method.
        base: Runs of the reference.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.

    Returns:
        The comparison and the centres without an AUC; None without runs of both groups on the same data, or without
        predictions with a centre.
    """
    seeds = [
        ranked
        for runs in by_seed(group).values()
        if (ranked := _ranked_predictions(pair_up(base, Group(group.label, tuple(runs))), tested)) is not None
    ]
    if not seeds:
        return None
    names = sorted({name for ranked in seeds for name in ranked.centre} - {""})
    exchanges = {name: [_exchange(name, ranked) for ranked in seeds] for name in names}
    gains = {name: _centre(name, seeds, _test(exchanges[name])) for name in names}
    rows = [row for row in gains.values() if row is not None]
    left = [ExcludedCentre(name, _counts(name, seeds[0])) for name, row in gains.items() if row is None]
    test = _mean_test([exchanges[row.name] for row in rows])
    mean = _mean_over_seeds(rows, test) if len(seeds) > 1 else mean_row(METRIC, rows, test, "centre")
    return Comparison(METRIC, group.label, correct_family(rows), mean, worst_row(METRIC, rows, "centre")), left


def _mean_over_seeds(rows: Sequence[ComparisonRow], test: PatientTest) -> ComparisonRow:
    """Return the mean over the centres, with its interval over the seeds."""
    mean = mean_row(METRIC, rows, test, "centre")
    if mean.difference is None or not mean.by_run:
        return mean
    return row_over_runs(METRIC, mean, None, test)


def _ranked_predictions(pairs: Sequence[RunPair], tested: Mapping[str, PredictionSets]) -> RankedPredictions | None:
    """Pool the predictions of a seed over the sites and folds that have both on the same images; None without any."""
    parts = []
    for pair in pairs:
        before, after = tested[str(pair.alone.folder)], tested[str(pair.other.folder)]
        both = [(before[site], after[site]) for site in sorted(before.keys() & after.keys())]
        parts += [sides for sides in both if _are_comparable(*sides)]
    if not parts:
        return None
    (before_ranks, labels), (after_ranks, _) = (pool_ranks(side) for side in zip(*parts, strict=True))
    return RankedPredictions(
        before=before_ranks,
        after=after_ranks,
        labels=labels,
        centre=tuple(name.strip() for test_set, _ in parts for name in test_set.centre),
        patients=concatenate_patients(
            [test_set.patients for test_set, _ in parts], [len(test_set.rows) for test_set, _ in parts]
        ),
    )


def _are_comparable(before: PredictionSet, after: PredictionSet) -> bool:
    return before.defined and after.defined and before.same_images(after) and len(before.centre) == len(before.rows)


def _exchange(name: str, ranked: RankedPredictions) -> ExchangeDistribution | None:
    """Return the exchanges of a centre's patients in one seed; None if the AUC is not defined."""
    part = ranked.at(name)
    score = partial(Multiclass(part.before.shape[1]).weighted_score, METRIC)
    return exchange_models(
        score, [(part.after, part.before)], part.labels, part.patients, zlib.crc32(name.encode()), order_only=True
    )


def _test(by_seed: Sequence[ExchangeDistribution | None]) -> PatientTest:
    """Return the test of a difference from the exchanges of each seed, with combined p-values."""
    tests = [exchange for exchange in by_seed if exchange is not None]
    if len(tests) < len(by_seed):
        return PatientTest(reason=UNDEFINED)
    return PatientTest(combine_p([test.p for test in tests]), min(test.patients for test in tests))


def _mean_test(centres: Sequence[Sequence[ExchangeDistribution | None]]) -> PatientTest:
    """Return the test of the mean over centres, given the exchanges of each centre in each seed."""
    if not centres:
        return PatientTest(reason=UNDEFINED)
    defined = [[exchange for exchange in same_seed if exchange is not None] for same_seed in zip(*centres, strict=True)]
    return _test([mean_exchange([(1 / len(parts), part) for part in parts]) if parts else None for parts in defined])


def _centre(name: str, seeds: Sequence[RankedPredictions], test: PatientTest) -> ComparisonRow | None:
    """Return the row of a centre; None unless its AUC is defined in every seed."""
    parts = [ranked.at(name) for ranked in seeds]
    objective = Multiclass(seeds[0].before.shape[1])
    sides = [
        [none_if_nan(objective.score(METRIC, part.before, part.labels)) for part in parts],
        [none_if_nan(objective.score(METRIC, part.after, part.labels)) for part in parts],
    ]
    if None in sides[0]:
        return None
    alone, other = map(mean_known, sides)
    images = max(len(part.labels) for part in parts)
    score = partial(objective.weighted_score, METRIC)
    differences = [
        paired_bootstrap(score, part.after, part.before, part.labels, patients=part.patients)
        for part in parts
        if _has_enough_patients(part.labels, part.patients)
    ]
    intervals = [interval for interval in differences if interval is not None]
    if len(intervals) == len(parts):
        counts = [len(part.patients.unique()) for part in parts if part.patients is not None]
        by_run = tuple(interval.difference for interval in intervals)
        row = ComparisonRow(
            name, images, alone, other, fmean(by_run), by_run=by_run, patients=max(counts, default=None)
        )
        if len(parts) > 1:
            return row_over_runs(METRIC, row, None, test)
        return add_patient_test(METRIC, row, intervals[0], test)
    difference = None if alone is None or other is None else other - alone
    return ComparisonRow(name, images, alone, other, difference, effect=TOO_FEW_PATIENTS)


def _has_enough_patients(labels: torch.Tensor, patients: torch.Tensor | None) -> bool:
    """Return whether each class with images has at least `MIN_PATIENTS` patients."""
    if patients is not None:
        labels = torch.stack([labels, patients]).unique(dim=1)[0]
    counts = torch.bincount(labels)
    return int(counts[counts > 0].min()) >= MIN_PATIENTS


def _counts(name: str, ranked: RankedPredictions) -> tuple[int, ...]:
    counts = Counter(ranked.at(name).labels.tolist())
    return tuple(counts[label] for label in range(ranked.before.shape[1]))


class CentresSection(TemplateSection):
    """Section of a report: AUC of each scanning centre."""

    template = "centres.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without predictions with a centre.

        They contain the comparison at each centre. The figures are also recorded for files.
        """
        centres = centres_section(data.groups, data.of("class_auc"), data.baseline)
        for place, (label, comparison) in enumerate((centres or {"tables": {}})["tables"].items()):
            record_forest(f"forest{place}", comparison, data.names, (centres or {})["bases"][label])
        return {"centres": centres, "axes": EffectAxis} if centres else None


def centres_section(
    groups: Sequence[Group], tested: Mapping[str, PredictionSets], baseline: Baseline = None
) -> Meta | None:
    """Return the variables of the template; None without predictions with a centre, and without a comparison.

    Args:
        groups: Groups of the page.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.
        baseline: Label of the reference group, or a mapping from each group's label to the label of its reference; None
            for local training.
    """
    bases = {group.label: base for group, base in compared(groups, baseline)}
    comparisons = {
        group.label: gains
        for group in groups
        if group.label in bases and (gains := centre_gains(group, bases[group.label], tested)) is not None
    }
    if not comparisons:
        return None
    tables = {label: comparison for label, (comparison, _) in comparisons.items() if comparison.rows}
    left = {centre.name: centre for _, out in comparisons.values() for centre in out}
    names = class_names(next(run for group in groups for run in group.runs if tested[str(run.folder)]))
    base = reference_phrase({bases[label].label for label in comparisons})
    return {
        "base": base,
        "bases": {label: bases[label].label for label in comparisons},
        "fewest": MIN_PATIENTS,
        "tables": tables,
        "picture": _picture(tables, groups, base) if tables else None,
        "several": any(len(by_seed(group)) > 1 for group in groups if group.label in comparisons),
        "left": [_describe(centre, names) for _, centre in sorted(left.items())],
    }


def _picture(tables: Mapping[str, Comparison], groups: Sequence[Group], base: str) -> Markup:
    points = {
        label: {row.name: row.difference or 0.0 for row in comparison.rows} for label, comparison in tables.items()
    }
    means = "; ".join(f"{label}: {signed(comparison.mean.difference)}" for label, comparison in tables.items())
    styles, label = group_looks(groups), f"difference in AUC from {base}"
    words = f"Difference in AUC from {base} at each centre. Mean over the centres: {means}."
    return compare_svg(lambda part: gains_figure(part, styles, label), points, "centres", words)


def _describe(centre: ExcludedCentre, classes: Sequence[str]) -> str:
    """Return a centre's name with its number of images of each class."""
    held = [f"{number(images)} {name}" for images, name in zip(centre.images, classes, strict=True) if images]
    return f"{centre.name} ({count(sum(centre.images), 'image')}: {join_words(held)})"
