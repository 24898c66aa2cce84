"""Summary box at the top of a report: comparison, data, effect, baseline, cost, and limits of the conclusions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from medfl.types import Meta
from medfl.utils.formats import (
    count,
    duration,
    join_words,
    metric_meaning,
    metric_words,
    number,
    p_phrase,
    score,
    sentence,
    signed,
    size,
)
from medfl.utils.text import names_and_more
from medfl_report.evaluation.external_scores import external_sites
from medfl_report.groups import data_per
from medfl_report.scores import LOCAL, has_unequal_classes, key_metrics, majority_baseline
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.methods import MethodComparison, MethodRow, compare_methods
from medfl_report.site_comparison import BETTER, TOO_FEW_PATIENTS, WORSE, ComparisonRow
from medfl_report.statistics import Interval

METHODS_LISTED = 6
"""Largest number of methods whose effects and costs the box lists one by one."""


class GlanceSection(TemplateSection):
    """Section of a report: summary box."""

    template = "at_a_glance.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without scores.

        They contain the entries of the box, as pairs (term, sentences).
        """
        comparison = data.compute_once(compare_methods)
        if comparison is None:
            return None
        entries = {
            "Compared" if comparison.references else "Method": [_compared(data, comparison)],
            "Test data": [_test_data(data)],
            "Metric": [_metric(data, comparison)],
            "Result" if not comparison.references else "Effect": _effects(comparison, data.names),
            "Majority-class baseline": _baseline(data, comparison),
            "Cost": _costs(comparison),
            "What cannot be concluded": _limits(data, comparison),
        }
        return {"entries": [(term, texts) for term, texts in entries.items() if texts]}


def _compared(data: ReportData, comparison: MethodComparison) -> str:
    """Return a sentence about the methods, their references and their runs."""
    labels = [row.label for row in comparison.rows]
    references = comparison.references
    compared = [label for label in labels if label not in references] or labels
    text = join_words(compared) if len(compared) <= METHODS_LISTED else f"{len(compared)} methods"
    text += f" with {join_words(references)} (reference)" if references else ""
    seeds = len({run.seed for _, run in data.runs})
    return f"{text}; {count(len(data.runs), 'run')} with {count(seeds, 'seed')}."


def _test_data(data: ReportData) -> str:
    """Return a sentence about the numbers of sites, test images and test patients."""
    runs_by_data = {run.data: run for _, run in reversed(data.runs)}
    images, patients = [], []
    for run in runs_by_data.values():
        sets = data.predictions[str(run.folder)].values()
        held = 0 if run.holdings is None else sum(sum(site.get("test", ())) for site in run.holdings.sites.values())
        images.append(held or sum(len(test_set.rows) for test_set in sets))
        patients += (
            [sum(s.patient_count or 0 for s in sets)] if sets and all(s.patients is not None for s in sets) else []
        )
    sites = len({site for _, run in data.runs for site in run.sites})
    what = f"{_range(images)} test images" if max(images, default=0) else "Test images"
    who = f" of {_range(patients)} patients" if len(patients) == len(images) else ""
    way = f", in each of {len(images)} data sets" if len(images) > 1 else ""
    return f"{what}{who} at {count(sites, 'site')}{way}{_unknown_patients(data)}."


def _unknown_patients(data: ReportData) -> str:
    """Return a phrase if patient numbers are missing at some or all sites; else empty."""
    sets = [item for by_site in data.predictions.values() for item in by_site.items()]
    without = {site for site, test_set in sets if test_set.patients is None}
    sites = {site for site, _ in sets}
    if not without:
        return ""
    if without < sites:
        return f"; patient numbers are known at {len(sites - without)} of {count(len(sites), 'site')}"
    return "; no two images are known to share a patient"


def _range(values: Sequence[int]) -> str:
    """Return the smallest and the largest value as text, or the only one."""
    low, high = min(values), max(values)
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _metric(data: ReportData, comparison: MethodComparison) -> str:
    """Return a sentence about the leading metric and the reason for it."""
    metric = comparison.metric
    meaning = metric_meaning(metric)
    text = f"{sentence(metric_words(metric, data.names))}{f': {meaning}' if meaning else ''}."
    if metric != next(iter(key_metrics(data.groups)), metric) and has_unequal_classes(data.groups):
        text += " It replaces accuracy as the leading metric, because the classes are of unequal size."
    return f"{text} Every site has the same weight."


def _effects(comparison: MethodComparison, names: Sequence[str]) -> list[str]:
    """Return a sentence for each method, or counts for many methods, and the kind of the intervals."""
    rows = [row for row in comparison.rows if row.mean is not None]
    if not comparison.references:
        return [*(f"{row.label}: {_with_interval(row.mean)}." for row in rows), comparison.uncertainty]
    scored = [row for row in rows if row.difference is not None]
    if not scored:
        return ["No difference can be computed: no runs of a method and its reference are on the same data."]
    if len(scored) > METHODS_LISTED:
        return [*_counts(scored), "The table of the methods has the differences.", comparison.uncertainty]
    means = {row.label: row.mean for row in rows}
    texts = [_effect(row, row.difference, means.get(row.reference)) for row in scored if row.difference is not None]
    return [*texts, comparison.uncertainty]


def _effect(row: MethodRow, gain: ComparisonRow, reference: Interval | None) -> str:
    ends = "" if gain.low is None else f" (95 % CI {signed(gain.low)} to {signed(gain.high)})"
    p = "" if gain.p is None else f", {p_phrase(gain.p)}"
    level = "" if row.mean is None else score(row.mean.difference)
    against = row.reference if reference is None else f"{score(reference.difference)} with {row.reference}"
    effect = "" if gain.effect == "–" else f": {gain.effect}"
    return f"{row.label} {level} against {against}: difference {signed(gain.difference)}{ends}{p}{effect}."


def _counts(rows: Sequence[MethodRow]) -> list[str]:
    """Return a sentence on the methods that are better than the reference, and one on those that are worse."""
    effects = {row.label: row.difference.effect for row in rows if row.difference is not None}
    texts = []
    for word in (BETTER, WORSE):
        labels = [label for label, effect in effects.items() if effect.startswith(word)]
        named = f": {join_words(labels)}" if 0 < len(labels) <= METHODS_LISTED else ""
        texts.append(f"{word.capitalize()} than the reference: {len(labels)} of {len(effects)} methods{named}.")
    return texts


def _with_interval(mean: Interval | None) -> str:
    if mean is None:
        return score(None)
    ends = "" if mean.low != mean.low else f" (95 % CI {score(mean.low)} to {score(mean.high)})"
    return score(mean.difference) + ends


def _baseline(data: ReportData, comparison: MethodComparison) -> list[str]:
    """Return a sentence about a model that always predicts the most frequent training class of its site."""
    baselines = (majority_baseline(run) for _, run in data.runs)
    scores = next((scores for scores in baselines if scores), {})
    shown = [name for name in (comparison.metric, *comparison.other_metrics) if name in scores]
    values = join_words([f"{metric_words(name)} {score(scores[name])}" for name in shown])
    return [f"Always predicting a site's most frequent training class gives {values}."] if shown else []


def _costs(comparison: MethodComparison) -> list[str]:
    """Return a sentence about training time and transferred data of each method; nothing for many methods."""
    rows = [row for row in comparison.rows if row.cost is not None]
    if not rows or len(rows) > METHODS_LISTED:
        return []
    each = [
        f"{row.label} {duration(row.cost.total['train_seconds'])} of training, {size(row.cost.transferred)} transferred"
        for row in rows
        if row.cost is not None
    ]
    of = f", median over the {comparison.repeated}" if comparison.repeated else ""
    return [f"All sites of one run{of}: {'; '.join(each)}."]


def _limits(data: ReportData, comparison: MethodComparison) -> list[str]:
    """Return sentences about conclusions that the runs do not support."""
    sets = [test_set for by_site in data.predictions.values() for test_set in by_site.values()]
    gains = [row.difference for row in comparison.rows if row.difference is not None]
    texts = []
    if not comparison.repeated:
        what = "the effect is" if comparison.references else "the scores are"
        texts.append(f"Whether {what} the same with other seeds: each method has one run.")
    elif comparison.repeated == "seeds" and (least := min(len(group.runs) for group in data.groups)) < 5:
        texts.append(f"Small effects: {count(least, 'seed')} for a method give wide intervals.")
    if not comparison.references:
        texts.append("Whether federated training helps: there is no run of the method local or of another reference.")
    elif all(group.method != LOCAL for group in data.groups):
        texts.append("Whether federated training is better than local training: there is no run of the method local.")
    if gains and all(gain.p is None for gain in gains):
        texts.append("Whether other patients would give the same effect: there are no predictions to test.")
    if any(gain.effect == TOO_FEW_PATIENTS for gain in gains):
        texts.append(f"Any effect for methods with too few {comparison.unit}.")
    if sets and any(test_set.patients is None for test_set in sets):
        texts.append(
            "Whether intervals are wide enough at sites without patient numbers, if patients have several images."
        )
    if data_per([run for _, run in data.runs]) == "seed":
        texts.append("Effects at a single site over the seeds: each seed has its own partition of the data.")
    external = external_sites([*(run for _, run in data.runs), *itertools.chain(*data.unseen.values())])
    if external:
        texts.append(f"Performance at sites other than {names_and_more(external, 5)}, and clinical benefit.")
    else:
        texts.append(
            "Performance at sites outside these runs, and clinical benefit: all test images are from these sites."
        )
    return texts
