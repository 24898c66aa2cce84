"""Section on forgetting between rounds: measures, recovery intervals, scores after training and by computing time.

A measure is a number that describes forgetting in a run (`medfl_report.forgetting.MEASURES`). A recovery interval is
the part of a score curve between a peak and the first later score that reaches the peak again. A trajectory is the test
scores of a run by round.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from medfl.engine.runs.records import RunRecord, describe_repetition
from medfl.types import Meta
from medfl.utils.formats import count, join_words, metric_words, score, signed
from medfl_report.curves import curves_svg, group_looks, last_values, trained_curve, work_curve
from medfl_report.figures import Curve, Look, RecoveryInterval, recovery_figure, svg
from medfl_report.forgetting import forgetting_metric, measures_of, missing_of
from medfl_report.forgetting_scores import recovery_intervals
from medfl_report.groups import Group, output_names, repeated_word
from medfl_report.scores import named_runs
from medfl_report.section import ReportData, TemplateSection
from medfl_report.statistics import mean_std
from medfl_report.trajectory import Trajectory, read_trajectory

MAX_DRAWN = 4
"""Largest number of groups whose recovery intervals are drawn."""

WORK = "seconds of work"
"""Label of the axis of computing time."""

MEANINGS = {
    "server test": "The global model on the server's test images. A large SD over the rounds means an unstable score.",
    "backward transfer": "Change of the global model's score on a site's test images since the last round in which "
    "that site took part, as mean over the sites (Fowler and AlRegib, equation 10). Negative: loss, positive: gain. It "
    "is not defined if the sites have personal models only.",
    "personal models' change": "The same difference for the sites' personal models. It is not a backward transfer: a "
    "personal model that only its own site updates cannot change while the site does not take part.",
    "consistency": "A recovery interval extends from a peak to the first later score that is not below it. "
    "Consistency is 1 minus the relative loss below the peak, as mean over the intervals; 1 means no loss. Literal, as "
    "in the paper: a last interval without recovery is left out, so that a run that collapses after its best round has "
    "consistency 1, and a gain above the peak counts as a loss. Open: an interval without recovery is included. Losses "
    "only: literal, without gains.",
    "local consistency": "Consistency of the scores right after training. Each round has other sites, so that it is "
    "also low if the sites differ.",
    "right after training": "The models that the sites trained in a round, before aggregation, each on the test images "
    "of its own site, as mean over the sites of the round.",
    "worst participant": "The lowest site of each round, right after training.",
    "worst site": "The site with the lowest mean over the rounds in which it trained, right after training.",
    "balance": "Mean of server test and right after training, both over the rounds.",
    "intervals": "Number of intervals of the literal consistency.",
}
"""Mapping from words in a column's heading to the definition that the page shows."""

NO_INTERVAL = "no interval"
"""Note on a consistency of 1 without any interval."""


@dataclass(frozen=True)
class MeasureColumn:
    """Column of a table of measures.

    Attributes:
        head: Heading, with words of `MEANINGS`.
        note: Note below the heading.
        measure: One of `medfl_report.forgetting.MEASURES`.
        spread: Measure with the standard deviation over the rounds; empty if it is not shown.
    """

    head: str
    note: str
    measure: str
    spread: str = ""


MAIN = (
    MeasureColumn("server test", "mean ± SD over rounds", "global_mean", "global_std"),
    MeasureColumn("backward transfer", "global model, mean over rounds", "bwt_mean"),
    MeasureColumn("backward transfer", "global model, last round", "bwt_final"),
    MeasureColumn("global consistency", "literal", "consistency_global"),
    MeasureColumn("global consistency", "open", "consistency_global_open"),
    MeasureColumn("right after training", "mean ± SD over rounds", "local_mean", "local_std"),
    MeasureColumn("worst participant", "mean over rounds", "worst_mean"),
    MeasureColumn("local consistency", "literal", "consistency_local"),
    MeasureColumn("balance", "of both means", "balance"),
    MeasureColumn("server test", "last round", "global_final"),
)
"""Columns of the main table of measures."""
MORE = (
    MeasureColumn("personal models' change", "mean over rounds", "personal_change_mean"),
    MeasureColumn("personal models' change", "last round", "personal_change_final"),
    MeasureColumn("global consistency", "losses only", "consistency_global_clipped"),
    MeasureColumn("global intervals", "literal", "intervals_global"),
    MeasureColumn("right after training", "last round", "local_final"),
    MeasureColumn("worst site", "mean over its rounds", "worst_site"),
    MeasureColumn("local consistency", "open", "consistency_local_open"),
    MeasureColumn("local consistency", "losses only", "consistency_local_clipped"),
    MeasureColumn("local intervals", "literal", "intervals_local"),
)
"""Columns of the second table, with further measures."""


@dataclass(frozen=True)
class MeasureCell:
    """Cell of a table of measures.

    Attributes:
        value: Number as text.
        over_rounds: Standard deviation over the rounds as text; empty without one.
        notes: Notes below the number.
    """

    value: str
    over_rounds: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ScoredGroup:
    """Runs of a group that have test scores.

    Attributes:
        label: Label of the group.
        runs: Runs, at least one, in the order of their seeds and folds.
        ways: Trajectory of each run.
    """

    label: str
    runs: list[RunRecord]
    ways: list[Trajectory]


class ForgettingSection(TemplateSection):
    """Section of a report: forgetting between rounds."""

    template = "forgetting.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without any measure, or with a single evaluated round.

        They contain tables and figures.
        """
        content = forgetting(data.groups)
        return {"forgetting": content} if content["tables"] and content["rounds"] > 1 else None


def forgetting(groups: Sequence[Group]) -> Meta:
    """Return the variables of the template.

    Returns:
        Dictionary with the keys metric, rounds (largest number of evaluated rounds of a run), tables, meanings
        (definitions of the columns), several (word for the repeated runs), sentences (reasons for missing measures),
        falls (figures of recovery intervals), curves (other figures).
    """
    metric = forgetting_metric(groups)
    if metric is None:
        return _no_measures("The runs have no common metric in which larger is better.")
    ways = {str(run.folder): read_trajectory(run, metric) for _, run in named_runs(groups)}
    scored = {folder: way for folder, way in ways.items() if way.is_scored or len(way.trained)}
    without = [name for name, run in named_runs(groups) if str(run.folder) not in scored]
    names = output_names(groups)
    scored_groups, score_name = [], metric_words(metric, names)
    for group in groups:
        runs = [run for run in group.runs if str(run.folder) in scored]
        scored_groups += [ScoredGroup(group.label, runs, [scored[str(run.folder)] for run in runs])] if runs else []
    if not scored_groups:
        return _no_measures(f"There are no test scores in {score_name}.")
    values = {group.label: [measures_of(way) for way in group.ways] for group in scored_groups}
    over = repeated_word([Group(group.label, tuple(group.runs)) for group in scored_groups])
    tables = [_table(columns, values, over) for columns in (MAIN, MORE)]
    heads = [column.head for table in tables for column in table["columns"]]
    unscored = [f"{join_words(without)}: no {score_name} on test images."] if without else []
    return {
        "metric": score_name,
        "rounds": max(_evaluated_rounds(way) for group in scored_groups for way in group.ways),
        "tables": [table for table in tables if table["columns"]],
        "meanings": {words: text for words, text in MEANINGS.items() if any(words in head for head in heads)},
        "several": over,
        "sentences": [*_different_rounds(scored_groups), *_reasons(scored_groups), *unscored],
        "falls": _falls(scored_groups, group_looks(groups), score_name),
        "curves": _curves(scored_groups, group_looks(groups), score_name, over),
    }


def _no_measures(sentence: str) -> Meta:
    return {"tables": [], "rounds": 0, "sentences": [sentence], "falls": None, "curves": []}


def _evaluated_rounds(way: Trajectory) -> int:
    return max(len(table) for table in (way.server, way.global_at_sites, way.personal_at_sites, way.trained))


def _different_rounds(scored_groups: Sequence[ScoredGroup]) -> list[str]:
    """Return a warning if the runs have different numbers of rounds."""
    rounds = {group.label: sorted({max(way.participants, default=0) for way in group.ways}) for group in scored_groups}
    if len({number for numbers in rounds.values() for number in numbers}) == 1:
        return []
    each = [f"{label} has {join_words([str(number) for number in numbers])}" for label, numbers in rounds.items()]
    return [f"The runs have different numbers of rounds, which limits comparisons: {join_words(each)}."]


def _reasons(scored_groups: Sequence[ScoredGroup]) -> list[str]:
    """Return each reason for missing measures once, with its groups unless it concerns all."""
    concerned: dict[str, list[str]] = {}
    for group in scored_groups:
        reasons = [reason for run, way in zip(group.runs, group.ways, strict=True) for reason in missing_of(run, way)]
        for reason in dict.fromkeys(reasons):
            concerned.setdefault(reason, []).append(group.label)
    return [
        reason if len(labels) == len(scored_groups) else f"{join_words(labels)}: {reason}"
        for reason, labels in concerned.items()
    ]


# ---- tables


def _table(columns: Sequence[MeasureColumn], values: dict[str, list[dict[str, float]]], over: str) -> Meta:
    """Return a table with the columns that at least one run has, and a row of cells for each group."""
    shown = [column for column in columns if any(column.measure in run for runs in values.values() for run in runs)]
    rows = {label: [_cell(column, runs, over) for column in shown] for label, runs in values.items()}
    return {
        "columns": shown,
        "rows": rows,
        "no_interval": any(NO_INTERVAL in cell.notes for cells in rows.values() for cell in cells),
    }


def _cell(column: MeasureColumn, runs: list[dict[str, float]], over: str) -> MeasureCell:
    """Return the cell of a group: mean over its runs, with notes on spread, missing runs and missing intervals."""
    having = [run for run in runs if column.measure in run]
    if not having:
        is_personal = any("personal_change_mean" in run for run in runs)
        return MeasureCell("not defined" if is_personal and column.measure.startswith("bwt_") else score(None))
    values = [run[column.measure] for run in having]
    mean, spread = mean_std(values)
    over_rounds = score(mean_std([run[column.spread] for run in having])[0]) if column.spread else ""
    notes = [] if spread is None else [f"{over.removesuffix('s')} SD {score(spread)}"]
    notes += [f"{len(having)} of {len(runs)} {over}"] if len(having) < len(runs) else []
    if column.head.endswith("consistency") and 1 in values:  # which only a run without an interval has
        notes.append(NO_INTERVAL)
        notes += [f"in {values.count(1)} of {len(having)} {over}"] if values.count(1) < len(having) else []
    return MeasureCell(_text(column, mean), over_rounds, notes)


def _text(column: MeasureColumn, value: float) -> str:
    if column.head.endswith("intervals"):
        return f"{value:.3g}"
    return signed(value) if column.measure.startswith(("bwt_", "personal_change_")) else score(value)


# ---- pictures


def _falls(scored_groups: Sequence[ScoredGroup], styles: dict[str, Look], metric: str) -> Meta | None:
    """Return figures of the server test of each group's first run, with its recovery intervals; None without any."""
    firsts = []
    for group in scored_groups:
        pairs = zip(group.runs, group.ways, strict=True)
        scored = [
            (group.label, describe_repetition(run.seed, run.fold), way.server)
            for run, way in pairs
            if way.every_round() and len(way.server) > 1
        ]
        firsts += scored[:1]
    if not firsts:
        return None
    drawn = firsts[:MAX_DRAWN]
    scores = [value for _, _, series in drawn for value in series]
    room = 0.06 * (max(scores) - min(scores)) or 0.05
    limits = min(scores) - room, max(scores) + room
    pictures = []
    for number, (label, which, series) in enumerate(drawn):
        curve = Curve(label, series.index.tolist(), series.tolist())
        intervals = _intervals(series.tolist())
        text = f"{label}, {which}: {_in_words(intervals, curve.rounds)}"
        figure = recovery_figure(curve, intervals, styles[label], f"{metric}, server test", limits)
        pictures.append({"svg": svg(figure, f"falls{number}", f"{metric}, server test. {text}"), "caption": text})
    left = [label for label, _, _ in firsts[MAX_DRAWN:]]
    return {"pictures": pictures, "left": f"Not drawn: {join_words(left)}." if left else ""}


def _intervals(series: Sequence[float]) -> list[RecoveryInterval]:
    """Return all recovery intervals of a series, including a last one without recovery."""
    recovered = recovery_intervals(series)
    return [
        RecoveryInterval(peak=peak, end=end, recovers=(peak, end) in recovered)
        for peak, end in recovery_intervals(series, last=True)
    ]


def _in_words(intervals: Sequence[RecoveryInterval], rounds: Sequence[int]) -> str:
    """Return a sentence about the number of recovery intervals and the longest one."""
    ended = [interval for interval in intervals if interval.recovers]
    text = count(len(ended), "recovery interval") if ended else "no recovery interval"
    if ended:
        longest = max(ended, key=lambda interval: interval.end - interval.peak)
        text += f", the longest from round {rounds[longest.peak]} to {rounds[longest.end]}"
    lost = [rounds[interval.peak] for interval in intervals if not interval.recovers]
    return text + (f"; the peak of round {lost[0]} is not reached again." if lost else ".")


def _curves(scored_groups: Sequence[ScoredGroup], styles: dict[str, Look], metric: str, over: str) -> list[Meta]:
    """Return figures of the scores right after training by round, and of the server test by computing time."""
    pictures = []
    means = f" Mean over the {over}, for the rounds that all runs have." if over else ""
    local = [curve for group in scored_groups if (curve := trained_curve(group.label, group.ways))]
    if local:
        text = f"{metric} right after training, on the sites' test images: mean over the sites of a round.{means}"
        picture = curves_svg(
            local, styles, f"{metric}, right after training", "trained", f"{text} {last_values(local)}"
        )
        pictures.append({"svg": picture, "caption": text})
    spent = [curve for group in scored_groups if (curve := work_curve(group.label, group.ways))]
    if spent:
        text = (
            f"{metric}, server test, against the {WORK} of all sites, one after the other, without evaluation. The "
            f"seconds depend on the machine and its load.{means}"
        )
        words = f"{text} {last_values(spent, f'{{:.0f}} {WORK}')}"
        picture = curves_svg(spent, styles, f"{metric}, server test", "work", words, across=WORK)
        pictures.append({"svg": picture, "caption": text})
    return pictures
