"""The section that a hospital reads first: does a site gain by training with others?

Where each run tests another fold of the sites' people, a site's row is the mean over its folds. A fold of a small site
holds too few images to resample. So the interval is that of the differences of the folds, by Student's t with the
correction for training sets that overlap, as in the tables of `medfl_report.compare`. A row gains or loses if the test
over the patients of all folds (`medfl_report.patient_tests`) and this interval agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from matplotlib.figure import Figure

from medfl.metrics import LOWER_IS_BETTER, worst
from medfl.types import Meta
from medfl.utils.formats import count, listed, metric_words, score
from medfl_report.figures import ALONE as GREY
from medfl_report.figures import COLOURS, INK, place_axes
from medfl_report.gains import (
    GAINS,
    LOSES,
    TOO_FEW,
    UNCLEAR,
    Comparison,
    Gain,
    compare_sites,
    mean_known,
    pair_up,
    tested_row,
    worst_row,
)
from medfl_report.groups import Group, by_people, folds_among, several
from medfl_report.paper.pictures import keep
from medfl_report.patient_tests import UNDEFINED, Pair, PatientTest, PatientTests, Sets
from medfl_report.scores import ALONE, key_metrics, site_scores
from medfl_report.section import ReportData, TemplateSection
from medfl_report.statistics import paired_t

Scores = Mapping[int, tuple[float, float]]
"""Place of a pair to the two scores, alone and with the other method, where both are defined."""


def compare_folds(metric: str, name: str, pairs: Sequence[Pair], tested: Mapping[str, Sets]) -> Comparison:
    """Compare a group with the sites alone over folds.

    Args:
        metric: Its name.
        name: Of the group.
        pairs: Of at least two folds, all about the same people: see `medfl_report.groups`.
        tested: Run folder, as text, to its test sets.
    """
    sites = sorted({site for pair in pairs for site in pair.other.sites})
    scores = {site: _scores(metric, site, pairs) for site in sites}
    folds = folds_among([pair.other for pair in pairs])
    tests = PatientTests(metric, pairs, lambda run: tested[str(run.folder)])
    rows = [
        _row(metric, site, _images(site, pairs, tested), by_fold, folds, len(pairs), tests.over([site]))
        for site, by_fold in scores.items()
    ]
    means = {
        place: (mean_of[0], mean_of[1])
        for place in range(len(pairs))
        if (defined := [site[place] for site in scores.values() if place in site])
        and (mean_of := [sum(side) / len(defined) for side in zip(*defined, strict=True)])
    }
    mean = _row(metric, "mean of sites", None, means, folds, len(means), tests.over(sites))
    return Comparison(metric, name, rows, mean, worst_row(metric, rows))


def _scores(metric: str, site: str, pairs: Sequence[Pair]) -> Scores:
    scores = {}
    for place, pair in enumerate(pairs):
        alone, other = pair.alone.score(site, metric), pair.other.score(site, metric)
        if alone is not None and other is not None:
            scores[place] = (alone, other)
    return scores


def _images(site: str, pairs: Sequence[Pair], tested: Mapping[str, Sets]) -> int | None:
    """Test images of a site in all folds; None if nobody counted them."""
    sizes = {
        pair.other.data: len(test_set.rows)
        for pair in pairs
        if (test_set := tested[str(pair.other.folder)].get(site)) is not None
    }
    return sum(sizes.values()) if sizes else None


def _row(
    metric: str, name: str, images: int | None, scores: Scores, folds: int | None, runs: int, test: PatientTest
) -> Gain:
    alone, other = (mean_known(both[side] for both in scores.values()) for side in (0, 1))
    by_run = tuple(both[1] - both[0] for both in scores.values())
    if not by_run:
        return Gain(name, images, alone, other, verdict=UNDEFINED, left=runs)
    row = Gain(name, images, alone, other, mean_known(by_run), by_run=by_run, left=runs - len(by_run))
    interval = paired_t(by_run, folds=folds)
    if interval is None:
        why = "the same in all folds" if len(by_run) > 1 else f"defined in {count(1, 'fold')} only"
        return replace(row, verdict=f"no interval: {why}")
    row = replace(row, low=interval.low, high=interval.high)
    if test.p is None or test.too_few:
        return tested_row(metric, row, interval, test)
    if not (test.decides and interval.decided):
        return replace(row, p=test.p, verdict=UNCLEAR)
    better = (interval.difference > 0) != (metric in LOWER_IS_BETTER)
    return replace(row, p=test.p, verdict=GAINS if better else LOSES)


@dataclass(frozen=True)
class Against:
    """A group against the sites alone: comparisons by each key metric, what they say in words, and notes."""

    label: str
    verdict: str
    notes: list[str]
    metrics: list[Comparison]


TONES = {GAINS: COLOURS[0], LOSES: COLOURS[1]}
"""Verdict to colour; any other is grey."""

VERDICTS = {"gains": GAINS, "loses": LOSES, "unclear": UNCLEAR, "too_few": TOO_FEW}
"""For templates."""


class GainsSection(TemplateSection):
    """Who gains."""

    template = "gains.html"

    def content(self, data: ReportData) -> Meta:
        """Each method against the sites alone, or the scores by themselves."""
        gains = gains_section(data.groups, data.predictions)
        for place, against in enumerate(gains["comparisons"]):
            for comparison in against.metrics:
                keep_forest(f"forest{place}{comparison.metric.replace('_', '')}", comparison, data.names)
        return {"gains": gains, "axes": Axis, "verdicts": VERDICTS}


def keep_forest(name: str, comparison: Comparison, names: Sequence[str], base: str = "alone") -> None:
    """Keep the picture of a comparison for papers; the page has it within its table.

    Args:
        name: Of the picture.
        comparison: What is shown.
        names: Of outputs.
        base: What it is compared with.
    """
    label = f"{metric_words(comparison.metric, names)}, {comparison.name} against {base}"
    keep(name, f"Difference with its 95 % interval: {label}.", partial(forest_figure, comparison, label))


def forest_figure(comparison: Comparison, label: str) -> Figure:
    """A mark and a line for each row that has a difference, the first row on top.

    Args:
        comparison: Its rows, their mean and the worst.
        label: Of the horizontal axis.
    """
    rows = [(row, row.difference) for row in comparison.lines if row.difference is not None]
    names = [row.name for row, _ in rows]
    with place_axes(0.75 + 0.22 * len(rows), 0, 0.3 + 0.075 * max(map(len, names), default=0)) as (figure, axes):
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, (row, difference) in enumerate(reversed(rows)):
            colour = TONES.get(row.verdict, GREY)
            if row.low is not None and row.high is not None:
                axes.hlines(place, row.low, row.high, color=colour, linewidth=1.4)
            axes.plot([difference], [place], color=colour, marker="o", markersize=4.5, linestyle="none")
        axes.set(yticks=range(len(rows)), yticklabels=names[::-1], ylim=(-0.6, max(len(rows), 1) - 0.4))
        axes.set(xlim=(-comparison.reach, comparison.reach), xlabel=label)
    return figure


def gains_section(groups: Sequence[Group], tested: Mapping[str, Sets]) -> Meta:
    """The first section: each method against the sites alone, or plain scores where there is nothing to compare.

    Runs on other data are other sites, whatever their names, so each data set has comparisons and a table of its own;
    but folds test the same sites' people in turn, and are put together.
    """
    metrics = key_metrics(groups)
    comparisons, tables, left_over = [], [], []
    parts = by_people(groups)
    for name, same in parts.items():
        against, left = _compared(same, metrics, tested, name)
        comparisons += against
        left_over += [Group(_named(group.label, name), group.runs) for group in left if group.method != ALONE]
        tables += [_plain_table(name, left, metrics, tested)] if left else []
    unshared = [] if metrics else ["The runs have no metric in common, so there is nothing to compare them by."]
    return {
        "comparisons": comparisons,
        "plain": [table for table in tables if table["columns"]],
        "sentences": [*unshared, *_missing(groups, left_over), *_unscored(groups)],
        "several": several([group for same in parts.values() for group in same]),
    }


def _compared(
    groups: Sequence[Group], metrics: Sequence[str], tested: Mapping[str, Sets], data: str
) -> tuple[list[Against], list[Group]]:
    """Groups on the same people against those alone, and the groups that are left without a comparison."""
    alone = [group for group in groups if group.method == ALONE]
    others = [group for group in groups if group.method != ALONE]
    results = [(group, _against(alone, group, metrics, tested, data)) for group in others]
    left = [group for group, against in results if against is None]
    return [against for _, against in results if against], left if others else alone


def _named(label: str, data: str) -> str:
    return f"{label}, {data}" if data else label


def _against(
    alone: Sequence[Group], group: Group, metrics: Sequence[str], tested: Mapping[str, Sets], data: str
) -> Against | None:
    """A comparison with the first of the groups that has the same data; None without one, or without scores."""
    for base in alone:
        pairs = [pair for pair in pair_up(base, group) if pair.alone.summary and pair.other.summary]
        if not pairs:
            continue
        label = _named(group.label, data)
        way = compare_folds if folds_among([pair.other for pair in pairs]) else compare_sites
        comparisons = [way(metric, label, pairs, tested) for metric in metrics]
        scored = [comparison for comparison in comparisons if comparison.mean.difference is not None]
        if not scored:
            return None
        notes = []
        if len(pairs) < len(group.runs):
            notes.append(
                f"{len(pairs)} of the {len(group.runs)} runs of {label} are compared: the others, or their runs of "
                f"{base.label}, are not over."
            )
        unlike = [pair for pair in pairs if pair.alone.seed != pair.other.seed]
        if unlike:
            seeds = listed([f"{pair.other.seed} against {pair.alone.seed}" for pair in unlike])
            notes.append(f"Seeds differ: {seeds}. So the runs also differ by the luck of their first model.")
        return Against(label, _in_words(scored[0], group.names), notes, scored)
    return None


def _in_words(comparison: Comparison, names: Sequence[str]) -> str:
    """The result in one sentence."""
    known = [row for row in comparison.rows if row.p is not None]
    mean = f"On average over the sites the {metric_words(comparison.metric, names)} goes from "
    mean += f"{score(comparison.mean.alone)} alone to {score(comparison.mean.other)} with {comparison.name}"
    if not known:
        return f"{mean}; there is no test to say whether chance explains that."
    kinds = [
        (GAINS, "gains", "gain"),
        (LOSES, "loses", "lose"),
        (UNCLEAR, f"shows {UNCLEAR}", f"show {UNCLEAR}"),
        (TOO_FEW, f"has {TOO_FEW}", f"have {TOO_FEW}"),
    ]
    counts = [(sum(row.verdict == verdict for row in known), single, many) for verdict, single, many in kinds]
    fewer = " with a test" if len(known) < sum(row.difference is not None for row in comparison.rows) else ""
    verdicts = listed([f"{number} {single if number == 1 else many}" for number, single, many in counts if number])
    return f"{mean}. Of {count(len(known), 'site')}{fewer}: {verdicts}."


def _missing(groups: Sequence[Group], left: Sequence[Group]) -> list[str]:
    if all(group.method != ALONE for group in groups):
        return [
            "Give a run of the method local as well to see who gains: medfl report RUN LOCAL_RUN. Until then these "
            "are the scores by themselves."
        ]
    if all(group.method == ALONE for group in groups):
        return [
            "Here every site trained alone. Give a run of another method as well to see who gains: "
            "medfl report RUN LOCAL_RUN."
        ]
    if not left:
        return []
    names = listed([group.label for group in left])
    return [f"There is no difference to show for {names}: no run alone on the same data has scores to compare with."]


def _unscored(groups: Sequence[Group]) -> list[str]:
    names = [group.label for group in groups if not any(run.scores for run in group.runs)]
    return [f"There are no final scores of {listed(names)}."] if names else []


def _plain_table(name: str, groups: Sequence[Group], metrics: Sequence[str], tested: Mapping[str, Sets]) -> Meta:
    """Sites in rows; groups, each with the metrics that it has, in columns. All runs are on the same people."""
    columns = [(group.label, metric, site_scores(group, metric, tested)) for group in groups for metric in metrics]
    known = [[row.value for row in scores if row.value is not None] for _, _, scores in columns]
    shown = [(*column, values) for column, values in zip(columns, known, strict=True) if values]
    return {
        "data": name,
        "labels": listed([group.label for group in groups]),
        "columns": [(label, metric) for label, metric, _, _ in shown],
        "rows": list(zip(*(scores for _, _, scores, _ in shown), strict=True)),
        "wilson": any(row.low is not None for _, _, scores, _ in shown for row in scores),
        "mean": [mean_known(values) for _, _, _, values in shown],
        "worst": [worst(metric, values) for _, metric, _, values in shown],
    }


@dataclass(frozen=True)
class Axis:
    """The axis of the small pictures beside the rows of a comparison: from -reach to +reach over 168 of 180 units."""

    comparison: Comparison

    def x(self, value: float) -> str:
        """Where a difference is drawn."""
        reach = self.comparison.reach
        return f"{90 + 84 * max(-1.0, min(1.0, value / reach)):.1f}"

    def tone(self, row: Gain) -> str:
        """The class of a row's colour."""
        return {GAINS: "up", LOSES: "down"}.get(row.verdict, "soft")

    @property
    def sides(self) -> str:
        """What lies left and right of 0."""
        ends = (GAINS, LOSES) if self.comparison.metric in LOWER_IS_BETTER else (LOSES, GAINS)
        return f"← {ends[0]} · {ends[1]} →"

    @property
    def left(self) -> str:
        """The label of the left end."""
        return f"−{self.comparison.reach:g}"

    @property
    def right(self) -> str:
        """The label of the right end."""
        return f"+{self.comparison.reach:g}"
