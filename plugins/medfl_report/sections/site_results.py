"""Section that compares federated methods with local training at each site.

One pair of runs has intervals over the test patients. Several seeds or folds have intervals over the runs (Student's t;
over folds with the correction for overlapping training sets), as in the tables of `medfl_report.compare`. Runs on other
people, such as seeds with their own partitions, are compared separately: a site's name stands for other people there.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from medfl.metrics import LOWER_IS_BETTER_METRICS, worst
from medfl.types import Meta
from medfl.utils.formats import count, join_words, metric_words, score
from medfl_report.figures import COLOURS, INK, LOCAL_COLOUR, place_axes
from medfl_report.groups import Group, by_people, repeated_word
from medfl_report.paper.page_figures import record_figure
from medfl_report.paper.page_tables import ReportTable, record_table
from medfl_report.patient_tests import PredictionSets
from medfl_report.predictions import resampled_unit
from medfl_report.scores import LOCAL, page_metrics, site_scores
from medfl_report.section import ReportData, TemplateSection
from medfl_report.site_comparison import (
    BETTER,
    NO_CLEAR_DIFFERENCE,
    TOO_FEW_PATIENTS,
    TOO_FEW_RUNS,
    WORSE,
    Comparison,
    ComparisonRow,
    compare_sites,
    mean_known,
    pair_up,
)

EFFECT_COLOURS = {BETTER: COLOURS[0], WORSE: COLOURS[1]}
"""Maps each effect to its colour in figures; other effects are grey."""

EFFECTS = {
    "gains": BETTER,
    "loses": WORSE,
    "unclear": NO_CLEAR_DIFFERENCE,
    "too_few": TOO_FEW_PATIENTS,
    "too_few_runs": TOO_FEW_RUNS,
}
"""Mapping from the names that templates use for effects to the effects."""


@dataclass(frozen=True)
class MethodAgainstLocal:
    """Comparison of a method with local training on the same data.

    Attributes:
        label: Label of the method, with the name of the data if there are several data sets.
        summary: Result in one sentence.
        notes: Notes on the runs that are compared.
        metrics: Comparison in each key metric.
    """

    label: str
    summary: str
    notes: list[str]
    metrics: list[Comparison]


class SiteResultsSection(TemplateSection):
    """Section of a report: federated methods compared with local training, site by site."""

    template = "site_results.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return comparisons with local training, or the scores of the sites; None without scores.

        The figures of the leading metric are recorded for files, unless each seed has its own data, and so is the table
        ``sites.csv`` of all comparisons.
        """
        gains = gains_section(data.groups, data.predictions)
        if not any(run.scores for _, run in data.runs):
            return None
        if not gains["split"]:
            for place, against in enumerate(gains["comparisons"]):
                record_forest(f"forest{place}", against.metrics[0], data.names, "local training")
        if gains["comparisons"]:
            record_table(_sites_table(gains["comparisons"]))
        return {"gains": gains, "axes": EffectAxis, "effects": EFFECTS}


def record_forest(name: str, comparison: Comparison, names: Sequence[str], base: str) -> None:
    """Record the figure of a comparison for files; the page shows it within the comparison's table.

    Args:
        name: Name of the figure.
        comparison: The comparison.
        names: Names of the network outputs.
        base: Name of the reference.
    """
    label = f"{metric_words(comparison.metric, names)}, {comparison.name} against {base}"
    draw = partial(forest_figure, comparison.lines, comparison.reach, label)
    record_figure(name, f"Difference with 95 % confidence interval: {label}.", draw)


def forest_figure(rows: Iterable[ComparisonRow], reach: float, label: str) -> Figure:
    """Draw a forest plot: a marker and an interval for each row that has a difference, the first row at the top.

    Args:
        rows: Rows of a comparison.
        reach: Half the width of the horizontal axis around 0.
        label: Label of the horizontal axis.
    """
    drawn = [(row, row.difference) for row in rows if row.difference is not None]
    names = [row.name for row, _ in drawn]
    with place_axes(0.75 + 0.22 * len(drawn), 0, 0.3 + 0.075 * max(map(len, names), default=0)) as (figure, axes):
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, (row, difference) in enumerate(reversed(drawn)):
            colour = EFFECT_COLOURS.get(row.effect.removesuffix(" (seeds only)"), LOCAL_COLOUR)
            if row.low is not None and row.high is not None:
                axes.hlines(place, row.low, row.high, color=colour, linewidth=1.4)
            axes.plot([difference], [place], color=colour, marker="o", markersize=4.5, linestyle="none")
        axes.set(yticks=range(len(drawn)), yticklabels=names[::-1], ylim=(-0.6, max(len(drawn), 1) - 0.4))
        axes.set(xlim=(-1.08 * reach, 1.08 * reach), xlabel=label)
    return figure


def _sites_table(comparisons: Sequence[MethodAgainstLocal]) -> ReportTable:
    """Return the differences at all sites in all metrics as one table, which is written as CSV only."""
    table = ReportTable("Comparison with local training at each site", file="sites", latex=False)
    table.head("method", "metric", "site", "images", "patients", "local", "method's score", "difference", "low", "high")
    table.head("p", "effect")
    for against in comparisons:
        for comparison in against.metrics:
            for row in comparison.lines:
                numbers = (row.alone, row.other, row.difference, row.low, row.high, row.p)
                texts = ["" if value is None else f"{value:.4f}" for value in numbers]
                table.row(against.label, comparison.metric, row.name, row.images, row.patients, *texts, row.effect)
    return table


def gains_section(groups: Sequence[Group], tested: Mapping[str, PredictionSets]) -> Meta:
    """Compare each method with local training, separately for each set of people; folds have the same people.

    Args:
        groups: Groups of the page.
        tested: Mapping from each run folder (as text) to the run's test sets with predictions, by site name.

    Returns:
        Variables of the template: comparisons (`MethodAgainstLocal`), plain (tables of scores of groups that can't be
        compared), sentences, several (``seeds``, ``folds``, ``runs`` or empty), split (true if there are several sets
        of people), unit (of bootstraps over test sets, in words).
    """
    metrics = page_metrics(groups)
    comparisons, tables, left_over = [], [], []
    parts = by_people(groups)
    for name, same in parts.items():
        against, left = _compared(same, metrics, tested, name)
        comparisons += against
        left_over += [Group(_label_with_data(group.label, name), group.runs) for group in left if group.method != LOCAL]
        tables += [_plain_table(name, left, metrics, tested)] if left else []
    unshared = [] if metrics else ["The runs have no metric in common, so they can't be compared."]
    return {
        "comparisons": comparisons,
        "plain": [table for table in tables if table["columns"]],
        "sentences": [*unshared, *_missing(groups, left_over), *_unscored(groups)],
        "several": repeated_word([group for same in parts.values() for group in same]),
        "split": len(parts) > 1,
        "unit": resampled_unit(test_set for by_site in tested.values() for test_set in by_site.values()),
    }


def _compared(
    groups: Sequence[Group], metrics: Sequence[str], tested: Mapping[str, PredictionSets], data: str
) -> tuple[list[MethodAgainstLocal], list[Group]]:
    """Compare the groups on the same people with local training; also return the groups without a comparison."""
    alone = [group for group in groups if group.method == LOCAL]
    others = [group for group in groups if group.method != LOCAL]
    results = [(group, _against_local(alone, group, metrics, tested, data)) for group in others]
    left = [group for group, against in results if against is None]
    return [against for _, against in results if against], left if others else alone


def _label_with_data(label: str, data: str) -> str:
    return f"{label}, {data}" if data else label


def _against_local(
    alone: Sequence[Group], group: Group, metrics: Sequence[str], tested: Mapping[str, PredictionSets], data: str
) -> MethodAgainstLocal | None:
    """Compare a group with the first group of local training on the same data; None without one or without scores.

    Runs are paired by seed. Only if no seed has both runs, runs of different seeds are paired.
    """
    for base in alone:
        finished = [pair for pair in pair_up(base, group) if pair.alone.summary and pair.other.summary]
        pairs = [pair for pair in finished if pair.alone.seed == pair.other.seed] or finished
        if not pairs:
            continue
        label = _label_with_data(group.label, data)
        comparisons = [compare_sites(metric, label, pairs, tested) for metric in metrics]
        scored = [comparison for comparison in comparisons if comparison.mean.difference is not None]
        if not scored:
            return None
        notes = []
        if len(pairs) < len(group.runs):
            notes.append(
                f"{len(pairs)} of the {len(group.runs)} runs of {label} are compared: the others are not over, or "
                f"there is no finished run of {base.label} with their seed."
            )
        other_seeds = [pair for pair in pairs if pair.alone.seed != pair.other.seed]
        if other_seeds:
            seeds = join_words([f"{pair.other.seed} against {pair.alone.seed}" for pair in other_seeds])
            notes.append(f"Seeds differ: {seeds}. The runs therefore also differ by the random initial model.")
        return MethodAgainstLocal(label, _summarise(scored[0], group.names), notes, scored)
    return None


def _summarise(comparison: Comparison, names: Sequence[str]) -> str:
    """Return the result in one sentence."""
    with_test = [row for row in comparison.rows if row.p is not None]
    mean = f"Mean over the sites: {metric_words(comparison.metric, names)} {score(comparison.mean.alone)} with local "
    mean += f"training, {score(comparison.mean.other)} with {comparison.name}"
    if not with_test:
        return f"{mean}; there is no test of this difference."
    counts = [(sum(row.effect == effect for row in with_test), effect) for effect in EFFECTS.values()]
    fewer = " with a test" if len(with_test) < sum(row.difference is not None for row in comparison.rows) else ""
    effects = join_words([f"{number} {effect}" for number, effect in counts if number])
    return f"{mean}. {count(len(with_test), 'site')}{fewer}: {effects}."


def _missing(groups: Sequence[Group], left: Sequence[Group]) -> list[str]:
    if all(group.method != LOCAL for group in groups):
        return [
            "There is no run of the method local, so these are scores without a comparison with local training. "
            "Compare with: medfl report RUN LOCAL_RUN."
        ]
    if all(group.method == LOCAL for group in groups):
        return ["All runs are local training. To compare with a federated method: medfl report RUN LOCAL_RUN."]
    if not left:
        return []
    names = join_words([group.label for group in left])
    return [f"No difference for {names}: no run of local training on the same data has scores."]


def _unscored(groups: Sequence[Group]) -> list[str]:
    names = [group.label for group in groups if not any(run.scores for run in group.runs)]
    return [f"There are no final scores of {join_words(names)}."] if names else []


def _plain_table(
    name: str, groups: Sequence[Group], metrics: Sequence[str], tested: Mapping[str, PredictionSets]
) -> Meta:
    """Return a table with a row for each site and a column for each group and metric; all runs have the same people."""
    columns = [(group.label, metric, site_scores(group, metric, tested)) for group in groups for metric in metrics]
    values = [[row.value for row in scores if row.value is not None] for _, _, scores in columns]
    shown = [(*column, of_column) for column, of_column in zip(columns, values, strict=True) if of_column]
    return {
        "data": name,
        "labels": join_words([group.label for group in groups]),
        "columns": [(label, metric) for label, metric, _, _ in shown],
        "rows": list(zip(*(scores for _, _, scores, _ in shown), strict=True)),
        "wilson": any(row.low is not None for _, _, scores, _ in shown for row in scores),
        "mean": [mean_known(of_column) for _, _, _, of_column in shown],
        "worst": [worst(metric, of_column) for _, metric, _, of_column in shown],
    }


@dataclass(frozen=True)
class EffectAxis:
    """Horizontal axis of the small figures beside the rows of a comparison, in a view box of 180 units.

    Attributes:
        comparison: The comparison. The axis extends over 168 units from -reach to +reach, where reach is
            `Comparison.reach`.
    """

    comparison: Comparison

    def x(self, value: float) -> str:
        """Return the horizontal position of a difference in view box units, as text."""
        reach = self.comparison.reach
        return f"{90 + 84 * max(-1.0, min(1.0, value / reach)):.1f}"

    def tone(self, row: ComparisonRow) -> str:
        """Return the CSS class of a row's colour."""
        return {BETTER: "up", WORSE: "down"}.get(row.effect, "soft")

    @property
    def sides(self) -> str:
        """Text with the meaning of the left and the right side of 0, such as ``← worse · better →``."""
        ends = (BETTER, WORSE) if self.comparison.metric in LOWER_IS_BETTER_METRICS else (WORSE, BETTER)
        return f"← {ends[0]} · {ends[1]} →"

    @property
    def left(self) -> str:
        """Label of the left end of the axis: -reach."""
        return f"−{self.comparison.reach:g}"

    @property
    def right(self) -> str:
        """Label of the right end of the axis: +reach."""
        return f"+{self.comparison.reach:g}"
