"""Table of the methods: one row for each method over all its seeds, folds and sites.

All intervals of the table have the same kind. If any method has several runs, they are Student's t over the runs, with
differences paired by seed and fold, as in `medfl_report.compare` and a study's tables. Otherwise each method has one
run, and the intervals are bootstraps over its test patients, or over its test images if patients are not known.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from medfl.metrics import LOWER_IS_BETTER_METRICS
from medfl.types import Meta
from medfl.utils.formats import metric_words, none_if_nan, signed
from medfl_report.compare import comparison_row, run_means
from medfl_report.figures import svg
from medfl_report.groups import Group, repeated_word, split_ratio
from medfl_report.objectives.site_scores import score_sites
from medfl_report.patient_tests import RunPair
from medfl_report.predictions import resampled_unit
from medfl_report.scores import compared, page_metrics
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.run_tables import Cost, median_cost
from medfl_report.sections.site_results import forest_figure
from medfl_report.site_comparison import NO_CLEAR_DIFFERENCE, ComparisonRow, axis_reach, compare_sites
from medfl_report.statistics import Interval, paired_t

EFFECTS = {"n.s.": NO_CLEAR_DIFFERENCE, "-": "–"}
"""Mapping from an effect in a comparison table to the words for the effect on the page, if these differ."""


@dataclass(frozen=True)
class MethodRow:
    """Row of a method.

    Attributes:
        label: Label of the method.
        runs: Seeds and folds of its runs.
        mean: Leading metric, as mean over the sites and then over the runs, with its interval; the ends are NaN if
            there is no interval. None without scores.
        others: Means of the other metrics; None if a metric is not defined.
        reference: Label of the reference; empty for the reference itself.
        difference: Difference from the reference with interval, p-value and effect; None for the reference and without
            runs on the same data.
        pairs: Number of pairs of runs behind the difference.
        rank: Position by the mean, 1 for the best; equal means share a rank. None without scores.
        cost: Median cost of a run; None while no run is over.
    """

    label: str
    runs: str
    mean: Interval | None
    others: tuple[float | None, ...]
    reference: str
    difference: ComparisonRow | None
    pairs: int
    rank: int | None
    cost: Cost | None


@dataclass(frozen=True)
class MethodComparison:
    """Table of the methods.

    Attributes:
        metric: Leading metric.
        other_metrics: Further metrics.
        rows: One row for each method, in the order of the page.
        repeated: ``seeds``, ``folds`` or ``runs`` if the intervals are over these; empty for one run of each method.
        unit: Unit of the bootstraps and tests over test sets, in words: test patients, or test images.
    """

    metric: str
    other_metrics: tuple[str, ...]
    rows: tuple[MethodRow, ...]
    repeated: str
    unit: str

    @property
    def references(self) -> list[str]:
        """Labels of all references."""
        return list(dict.fromkeys(row.reference for row in self.rows if row.reference))

    @property
    def uncertainty(self) -> str:
        """Sentence about the kind of the intervals."""
        if not self.repeated:
            return (
                f"95 % confidence intervals: bootstrap over the {self.unit} of one run of each method; they do not "
                "include the variation between seeds."
            )
        return (
            f"95 % confidence intervals: of a mean, Student's t over the {self.repeated}; of a difference, paired by "
            f"{'seed and fold' if self.repeated != 'seeds' else 'seed'}, over the {self.repeated} and the "
            f"{self.unit}, or over the splits if these differ."
        )


def compare_methods(data: ReportData) -> MethodComparison | None:
    """Compare all methods of a page with their references; None if no run has scores in a common metric."""
    metrics = page_metrics(data.groups)
    if not metrics or not any(run_means(group, metrics[0]) for group in data.groups):
        return None
    metric, repeated = metrics[0], repeated_word(data.groups)
    references = {group.label: base for group, base in compared(data.groups, data.baseline)}
    means = {group.label: _mean(group, metric, data, bool(repeated)) for group in data.groups}
    ranks = _ranks({label: mean.difference for label, mean in means.items() if mean is not None}, metric)
    rows = []
    for group in data.groups:
        base = references.get(group.label)
        difference, pairs = (None, 0) if base is None else _difference(group, base, metric, data, bool(repeated))
        others = [run_means(group, name) for name in metrics[1:]]
        rows.append(
            MethodRow(
                label=group.label,
                runs=group.repetitions,
                mean=means[group.label],
                others=tuple(math.fsum(values) / len(values) if values else None for values in others),
                reference="" if base is None else base.label,
                difference=difference,
                pairs=pairs,
                rank=ranks.get(group.label),
                cost=median_cost(group),
            )
        )
    unit = resampled_unit(test_set for by_site in data.predictions.values() for test_set in by_site.values())
    return MethodComparison(metric, tuple(metrics[1:]), tuple(rows), repeated, unit)


def _mean(group: Group, metric: str, data: ReportData, over_runs: bool) -> Interval | None:
    """Return the mean of a metric with its interval, over the runs or over the patients of a single run."""
    values = run_means(group, metric)
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if over_runs:
        return paired_t(values, ratio=split_ratio(group.runs)) or Interval(mean, math.nan, math.nan)
    resampled = score_sites(group, data.predictions, metric).mean
    if resampled is None or not math.isclose(resampled.difference, mean, abs_tol=1e-9):
        return Interval(mean, math.nan, math.nan)  # the predictions do not cover all scored sites
    return Interval(mean, resampled.low, resampled.high)


def _difference(
    group: Group, base: Group, metric: str, data: ReportData, over_runs: bool
) -> tuple[ComparisonRow | None, int]:
    """Return the difference from the reference and the number of pairs; None without runs on the same data."""
    if over_runs:
        row = comparison_row(group, base, metric, "test", lambda run: data.predictions[str(run.folder)])
        if not row["pairs"]:
            return None, 0
        effect = EFFECTS.get(str(row["effect"]), str(row["effect"]))
        low, high, p, claim = (none_if_nan(row[name]) for name in ("low", "high", "p_patients", "p_claim"))
        gain = ComparisonRow(
            group.label, None, None, None, row["difference"], low, high, effect=effect, p=p, p_claim=claim
        )
        return gain, row["pairs"]
    (run,), (reference,) = group.runs, base.runs
    if run.data != reference.data or run.summary is None or reference.summary is None:
        return None, 0
    mean = compare_sites(metric, group.label, [RunPair(reference, run)], data.predictions).mean
    if mean.difference is None:
        return None, 0
    gain = ComparisonRow(
        group.label,
        None,
        None,
        None,
        mean.difference,
        mean.low,
        mean.high,
        effect=mean.effect,
        p=mean.p,
        p_claim=mean.p,
    )
    return gain, 1


def _ranks(means: dict[str, float], metric: str) -> dict[str, int]:
    """Return the rank of each label by its mean, 1 for the best; equal means share a rank."""
    sign = 1 if metric in LOWER_IS_BETTER_METRICS else -1
    keys = {label: round(sign * mean, 12) for label, mean in means.items()}
    return {label: 1 + sum(other < key for other in keys.values()) for label, key in keys.items()}


class MethodsSection(TemplateSection):
    """Section of a report: table of the methods, on pages with several runs."""

    template = "methods.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None for a single run and without scores.

        They contain the table and the figure of the differences.
        """
        comparison = data.compute_once(compare_methods) if len(data.runs) > 1 else None
        if comparison is None:
            return None
        rows = [row.difference for row in comparison.rows if row.difference is not None]
        costs = [row.cost for row in comparison.rows if row.cost is not None]
        return {
            "methods": comparison,
            "reference": comparison.references[0] if len(comparison.references) == 1 else "",
            "costs": bool(costs),
            "figure": _figure(comparison, rows, data.names) if len(rows) > 1 else None,
        }


def _figure(comparison: MethodComparison, rows: Sequence[ComparisonRow], names: Sequence[str]) -> str:
    base = comparison.references[0] if len(comparison.references) == 1 else "the reference of each"
    label = f"difference in {metric_words(comparison.metric, names)} from {base}"
    figure = forest_figure(rows, axis_reach(comparison.metric, rows), label)
    values = "; ".join(f"{row.name}: {signed(row.difference)}" for row in rows)
    return svg(figure, "methods", f"{label[0].upper()}{label[1:]}, with 95 % confidence intervals. {values}.")
