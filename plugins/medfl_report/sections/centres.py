"""Which scanning centres gain: for each centre the area under the ROC curve, with a method against a baseline.

A site may hold images of several centres. The folds of a seed are pooled at each site as in
`medfl_report.sections.fairness_measures`, so that every person counts once, and a score is its rank among those of the
site in its fold. The images of a centre are then taken together. A centre whose images are all of one class has no
area; its images are counted, and it is left out.

Source: Weng et al. 2025, FedSKD, figure 5a.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from markupsafe import Markup

from medfl.data.pooled import joined
from medfl.objectives import Multiclass
from medfl.types import Meta
from medfl.utils.formats import count, known, listed, number, signed
from medfl_report.curves import compare_svg, group_looks
from medfl_report.figures import gains_figure
from medfl_report.gains import TOO_FEW, Comparison, Gain, gain_row, mean_known, mean_row, pair_up, worst_row
from medfl_report.groups import Group, by_seed
from medfl_report.patient_tests import UNDEFINED, Pair, PatientTest, Sets
from medfl_report.predictions import Tested
from medfl_report.scores import Baseline, class_names, compared, over
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.fairness_measures import pool_ranks
from medfl_report.sections.gains import VERDICTS, Axis, keep_forest
from medfl_report.statistics import Exchange, combine_p, exchange_models, mean_exchange, paired_bootstrap

METRIC = "auc"
"""By which centres are compared."""


FEWEST = 5
"""Patients of a class that a centre needs for an interval and a verdict: resamples of fewer hardly differ."""


@dataclass(frozen=True)
class LeftOut:
    """A centre without an area.

    Attributes:
        name: Of the centre.
        images: Of each class, in their order.
    """

    name: str
    images: tuple[int, ...]


@dataclass(frozen=True)
class Answers:
    """What two methods say of the same images.

    Attributes:
        before: (N, C), float64: ranks of the baseline's scores within a site and fold.
        after: (N, C), float64: the same of the other method.
        labels: (N,), int64.
        centre: Of each image, "" where it is not known.
        patients: Of each image, (N,), as in `Tested`, or None.
    """

    before: torch.Tensor
    after: torch.Tensor
    labels: torch.Tensor
    centre: tuple[str, ...]
    patients: torch.Tensor | None = None

    def of(self, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Ranks of both, labels and patients of a centre."""
        chosen = torch.tensor([centre == name for centre in self.centre], dtype=torch.bool)
        patients = None if self.patients is None else self.patients[chosen]
        return self.before[chosen], self.after[chosen], self.labels[chosen], patients


def centre_gains(group: Group, base: Group, tested: Mapping[str, Sets]) -> tuple[Comparison, list[LeftOut]] | None:
    """Centre by centre, a group against a baseline, and the centres that are left out.

    Args:
        group: Runs of a method.
        base: Runs of the baseline.
        tested: Run folder, as text, to its test sets.

    Returns:
        None without runs of both on the same data, or without predictions that tell the centre.
    """
    seeds = [
        answers
        for runs in by_seed(group).values()
        if (answers := _answers(pair_up(base, Group(group.label, tuple(runs))), tested)) is not None
    ]
    if not seeds:
        return None
    names = sorted({name for answers in seeds for name in answers.centre} - {""})
    exchanges = {name: [_exchange(name, answers) for answers in seeds] for name in names}
    gains = {name: _centre(name, seeds, _test(exchanges[name])) for name in names}
    rows = [row for row in gains.values() if row is not None]
    left = [LeftOut(name, _counts(name, seeds[0])) for name, row in gains.items() if row is None]
    mean = mean_row(METRIC, rows, _mean_test([exchanges[row.name] for row in rows]), "centre")
    return Comparison(METRIC, group.label, rows, mean, worst_row(METRIC, rows, "centre")), left


def _answers(pairs: Sequence[Pair], tested: Mapping[str, Sets]) -> Answers | None:
    """The pooled predictions of a seed, of the sites and folds that have them from both on the same images."""
    parts = []
    for pair in pairs:
        before, after = tested[str(pair.alone.folder)], tested[str(pair.other.folder)]
        both = [(before[site], after[site]) for site in sorted(before.keys() & after.keys())]
        parts += [sides for sides in both if _usable(*sides)]
    if not parts:
        return None
    (ranks, labels), (others, _) = (pool_ranks(side) for side in zip(*parts, strict=True))
    patients = joined([test_set.patients for test_set, _ in parts], [len(test_set.rows) for test_set, _ in parts])
    return Answers(
        ranks, others, labels, tuple(name.strip() for test_set, _ in parts for name in test_set.centre), patients
    )


def _usable(before: Tested, after: Tested) -> bool:
    return before.defined and after.defined and before.same_images(after) and len(before.centre) == len(before.rows)


def _exchange(name: str, answers: Answers) -> Exchange | None:
    """The exchanges of a centre's patients in one seed; None where there is no area."""
    before, after, labels, patients = answers.of(name)
    score = partial(Multiclass(before.shape[1]).weighted_score, METRIC)
    return exchange_models(score, [(after, before)], labels, patients, zlib.crc32(name.encode()), order_only=True)


def _test(by_seed: Sequence[Exchange | None]) -> PatientTest:
    """The test over the exchanges of each seed, which have the same patients in an order of their own."""
    tests = [exchange for exchange in by_seed if exchange is not None]
    if len(tests) < len(by_seed):
        return PatientTest(reason=UNDEFINED)
    return PatientTest(combine_p([test.p for test in tests]), min(test.patients for test in tests))


def _mean_test(centres: Sequence[Sequence[Exchange | None]]) -> PatientTest:
    """The test of the mean of centres, each of which has its exchanges in each seed."""
    if not centres:
        return PatientTest(reason=UNDEFINED)
    defined = [[exchange for exchange in same_seed if exchange is not None] for same_seed in zip(*centres, strict=True)]
    return _test([mean_exchange([(1 / len(parts), part) for part in parts]) if parts else None for parts in defined])


def _centre(name: str, seeds: Sequence[Answers], test: PatientTest) -> Gain | None:
    """The row of a centre; None unless its area is defined in every seed."""
    parts = [answers.of(name) for answers in seeds]
    objective = Multiclass(seeds[0].before.shape[1])
    sides = [
        [known(objective.score(METRIC, before, labels)) for before, _, labels, _ in parts],
        [known(objective.score(METRIC, after, labels)) for _, after, labels, _ in parts],
    ]
    if None in sides[0]:
        return None
    alone, other = map(mean_known, sides)
    images = max(len(part[2]) for part in parts)
    differences = [
        paired_bootstrap(partial(objective.weighted_score, METRIC), after, before, labels, patients=patients)
        for before, after, labels, patients in parts
        if _many(labels, patients)
    ]
    intervals = [interval for interval in differences if interval is not None]
    if len(intervals) == len(parts):
        counts = [len(part[3].unique()) for part in parts if part[3] is not None]
        row = gain_row(METRIC, name, images, (alone, other), intervals, test)
        return replace(row, patients=max(counts, default=None))
    gap = None if alone is None or other is None else other - alone
    return Gain(name, images, alone, other, gap, verdict=TOO_FEW)


def _many(labels: torch.Tensor, patients: torch.Tensor | None) -> bool:
    """Whether each class that is there has enough patients for an interval."""
    if patients is not None:
        labels = torch.stack([labels, patients]).unique(dim=1)[0]
    counts = torch.bincount(labels)
    return int(counts[counts > 0].min()) >= FEWEST


def _counts(name: str, answers: Answers) -> tuple[int, ...]:
    counts = Counter(answers.of(name)[2].tolist())
    return tuple(counts[label] for label in range(answers.before.shape[1]))


class CentresSection(TemplateSection):
    """Which scanning centres gain."""

    template = "centres.html"

    def content(self, data: ReportData) -> Meta | None:
        """The comparison at each centre, where predictions tell it."""
        centres = centres_section(data.groups, data.of("class_auc"), data.baseline)
        for place, (label, comparison) in enumerate((centres or {"tables": {}})["tables"].items()):
            keep_forest(f"forest{place}", comparison, data.names, (centres or {})["bases"][label])
        return {"centres": centres, "axes": Axis, "verdicts": VERDICTS} if centres else None


def centres_section(groups: Sequence[Group], tested: Mapping[str, Sets], baseline: Baseline = None) -> Meta | None:
    """The section; None where no predictions tell the centre, or there is nothing to compare.

    Args:
        groups: Of the page.
        tested: Run folder, as text, to its test sets.
        baseline: See `medfl_report.scores.compared`.
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
    base = over({bases[label].label for label in comparisons})
    return {
        "base": base,
        "bases": {label: bases[label].label for label in comparisons},
        "fewest": FEWEST,
        "tables": tables,
        "picture": _picture(tables, groups, base) if tables else None,
        "several": any(len(by_seed(group)) > 1 for group in groups if group.label in comparisons),
        "left": [_told(centre, names) for _, centre in sorted(left.items())],
    }


def _picture(tables: Mapping[str, Comparison], groups: Sequence[Group], base: str) -> Markup:
    points = {
        label: {row.name: row.difference or 0.0 for row in comparison.rows} for label, comparison in tables.items()
    }
    means = "; ".join(f"{label}: {signed(comparison.mean.difference)}" for label, comparison in tables.items())
    styles, label = group_looks(groups), f"AUC gained over {base}"
    words = f"{label} at each centre. Mean of the centres: {means}."
    return compare_svg(lambda part: gains_figure(part, styles, label), points, "centres", words)


def _told(centre: LeftOut, classes: Sequence[str]) -> str:
    """A centre with its images of each class."""
    held = [f"{number(images)} {name}" for images, name in zip(centre.images, classes, strict=True) if images]
    return f"{centre.name} ({count(sum(centre.images), 'image')}: {listed(held)})"
