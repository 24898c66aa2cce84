"""The section of a report about what is forgotten between rounds: numbers, pictures and sentences for its template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from medfl.engine.runs.records import RunRecord, repetition
from medfl.types import Meta
from medfl.utils.formats import count, listed, metric_words, score, signed
from medfl_report.curves import curves_svg, ends, group_looks, trained_curve, work_curve
from medfl_report.figures import Curve, Fall, Look, recovery_figure, svg
from medfl_report.forgetting import forgetting_metric, measures_of, missing_of
from medfl_report.forgetting_scores import recovery_intervals
from medfl_report.groups import Group, output_names, several
from medfl_report.scores import named_runs
from medfl_report.section import ReportData, TemplateSection
from medfl_report.statistics import mean_std
from medfl_report.trajectory import Trajectory, read_trajectory

DRAWN = 4
"""With more groups than this the falls of the others are not drawn."""

WORK = "seconds of work"

MEANINGS = {
    "global test": "The global model on the server's test images. A large SD over the rounds says that it jumps.",
    "backward transfer": "What the global model has kept of a site since the last round in which that site took part: "
    "the global model's score on the site's test images now minus its score after that round, as mean over the sites "
    "(Fowler and AlRegib, equation 10). Below 0 the global model has lost, above 0 it has gained. It is not defined if "
    "the sites have personal models only.",
    "personal models' change": "The same difference for the sites' personal models. It is no backward transfer: a "
    "personal model that only its own site changes can lose nothing while the site does not take part.",
    "consistency": "How much of a peak is left until the score is back at it. An interval goes from a peak to the "
    "first later score that is not below it. Consistency is 1 minus the share of the peak that is missing meanwhile, "
    "as mean over the intervals; 1 says that nothing was. Literal, as in the paper, leaves out a last interval that "
    "never ends, so a run that breaks down after its best round looks perfect; and it counts a gain above the peak as "
    "missing. Open: an interval that never ends counts as well. Losses only: literal, and gains do not count.",
    "local consistency": "It is about the scores right after training. Each round has its own sites, so it is also low "
    "where sites are unlike.",
    "right after training": "The models that sites have trained in a round, before they are put together, each on the "
    "test images of its own site, as mean over the sites of the round.",
    "worst participant": "The lowest site of each round, right after training.",
    "worst site": "The site with the lowest mean over the rounds in which it trained, right after training.",
    "balance": "Mean of global test and right after training, both over the rounds.",
    "intervals": "How many intervals the literal consistency is about.",
}
"""What columns say whose heading has these words."""

NO_INTERVAL = "no interval"
"""Note on a consistency of 1."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: With words of `MEANINGS`.
        note: What is special about it.
        measure: One of `medfl_report.forgetting.MEASURES`.
        spread: The measure that is its standard deviation over the rounds, if that is shown.
    """

    head: str
    note: str
    measure: str
    spread: str = ""


MAIN = (
    Column("global test", "mean ± SD over rounds", "global_mean", "global_std"),
    Column("backward transfer", "global model, mean over rounds", "bwt_mean"),
    Column("backward transfer", "global model, last round", "bwt_final"),
    Column("global consistency", "literal", "consistency_global"),
    Column("global consistency", "open", "consistency_global_open"),
    Column("right after training", "mean ± SD over rounds", "local_mean", "local_std"),
    Column("worst participant", "mean over rounds", "worst_mean"),
    Column("local consistency", "literal", "consistency_local"),
    Column("balance", "of both means", "balance"),
    Column("global test", "last round", "global_final"),
)
MORE = (
    Column("personal models' change", "mean over rounds", "personal_change_mean"),
    Column("personal models' change", "last round", "personal_change_final"),
    Column("global consistency", "losses only", "consistency_global_clipped"),
    Column("global intervals", "literal", "intervals_global"),
    Column("right after training", "last round", "local_final"),
    Column("worst site", "mean over its rounds", "worst_site"),
    Column("local consistency", "open", "consistency_local_open"),
    Column("local consistency", "losses only", "consistency_local_clipped"),
    Column("local intervals", "literal", "intervals_local"),
)


@dataclass(frozen=True)
class Cell:
    """What stands in a table: a number, its standard deviation over the rounds or nothing, and notes below."""

    value: str
    over_rounds: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scored:
    """The runs of a group that have scores on test images.

    Attributes:
        label: Of the group.
        runs: In the order of their seeds and folds, at least one.
        ways: Of each run.
    """

    label: str
    runs: list[RunRecord]
    ways: list[Trajectory]


class ForgettingSection(TemplateSection):
    """What the federation forgets."""

    template = "forgetting.html"

    def content(self, data: ReportData) -> Meta | None:
        """Tables and pictures, or why there are none."""
        return {"forgetting": forgetting(data.groups)}


def forgetting(groups: Sequence[Group]) -> Meta:
    """Tables, pictures, and a sentence for what is missing."""
    metric = forgetting_metric(groups)
    if metric is None:
        return _nothing("The runs have no metric in common in which larger is better, so there is nothing to measure.")
    ways = {str(run.folder): read_trajectory(run, metric) for _, run in named_runs(groups)}
    scored = {folder: way for folder, way in ways.items() if way.is_scored or len(way.trained)}
    without = [name for name, run in named_runs(groups) if str(run.folder) not in scored]
    names = output_names(groups)
    scored_groups, score_name = [], metric_words(metric, names)
    for group in groups:
        runs = [run for run in group.runs if str(run.folder) in scored]
        scored_groups += [Scored(group.label, runs, [scored[str(run.folder)] for run in runs])] if runs else []
    if not scored_groups:
        return _nothing(f"There is no {score_name} on test images to measure it by.")
    values = {group.label: [measures_of(way) for way in group.ways] for group in scored_groups}
    over = several([Group(group.label, tuple(group.runs)) for group in scored_groups])
    tables = [_table(columns, values, over) for columns in (MAIN, MORE)]
    heads = [column.head for table in tables for column in table["columns"]]
    unscored = [f"{listed(without)}: no {score_name} on test images."] if without else []
    return {
        "metric": score_name,
        "tables": [table for table in tables if table["columns"]],
        "meanings": {words: text for words, text in MEANINGS.items() if any(words in head for head in heads)},
        "several": over,
        "sentences": [*_unlike_rounds(scored_groups), *_reasons(scored_groups), *unscored],
        "falls": _falls(scored_groups, group_looks(groups), score_name),
        "curves": _curves(scored_groups, group_looks(groups), score_name, over),
    }


def _nothing(sentence: str) -> Meta:
    return {"tables": [], "sentences": [sentence], "falls": None, "curves": []}


def _unlike_rounds(scored_groups: Sequence[Scored]) -> list[str]:
    """A warning if the runs have come unlike far."""
    rounds = {group.label: sorted({max(way.participants, default=0) for way in group.ways}) for group in scored_groups}
    if len({number for numbers in rounds.values() for number in numbers}) == 1:
        return []
    each = [f"{label} has {listed([str(number) for number in numbers])}" for label, numbers in rounds.items()]
    return [f"The numbers are about unlike many rounds, so compare them with care: {listed(each)}."]


def _reasons(scored_groups: Sequence[Scored]) -> list[str]:
    """Each reason why measures are missing once, with the groups that it concerns unless it is all."""
    concerned: dict[str, list[str]] = {}
    for group in scored_groups:
        reasons = [reason for run, way in zip(group.runs, group.ways, strict=True) for reason in missing_of(run, way)]
        for reason in dict.fromkeys(reasons):
            concerned.setdefault(reason, []).append(group.label)
    return [
        reason if len(labels) == len(scored_groups) else f"{listed(labels)}: {reason}"
        for reason, labels in concerned.items()
    ]


# ---- tables


def _table(columns: Sequence[Column], values: dict[str, list[dict[str, float]]], over: str) -> Meta:
    """The columns that at least one run has a number for, and a row of cells for each group, over seeds or folds."""
    shown = [column for column in columns if any(column.measure in run for runs in values.values() for run in runs)]
    rows = {label: [_cell(column, runs, over) for column in shown] for label, runs in values.items()}
    return {
        "columns": shown,
        "rows": rows,
        "no_interval": any(NO_INTERVAL in cell.notes for cells in rows.values() for cell in cells),
    }


def _cell(column: Column, runs: list[dict[str, float]], over: str) -> Cell:
    known = [run for run in runs if column.measure in run]
    if not known:
        is_personal = any("personal_change_mean" in run for run in runs)
        return Cell("not defined" if is_personal and column.measure.startswith("bwt_") else score(None))
    values = [run[column.measure] for run in known]
    mean, spread = mean_std(values)
    over_rounds = score(mean_std([run[column.spread] for run in known])[0]) if column.spread else ""
    notes = [] if spread is None else [f"{over.removesuffix('s')} SD {score(spread)}"]
    notes += [f"{len(known)} of {len(runs)} {over}"] if len(known) < len(runs) else []
    if column.head.endswith("consistency") and 1 in values:  # that is, and only is, without an interval
        notes.append(NO_INTERVAL)
        notes += [f"in {values.count(1)} of {len(known)} {over}"] if values.count(1) < len(known) else []
    return Cell(_text(column, mean), over_rounds, notes)


def _text(column: Column, value: float) -> str:
    if column.head.endswith("intervals"):
        return f"{value:.3g}"
    return signed(value) if column.measure.startswith(("bwt_", "personal_change_")) else score(value)


# ---- pictures


def _falls(scored_groups: Sequence[Scored], styles: dict[str, Look], metric: str) -> Meta | None:
    """The global test of the first run of each group, with its recovery intervals."""
    firsts = []
    for group in scored_groups:
        pairs = zip(group.runs, group.ways, strict=True)
        scored = [
            (group.label, repetition(run.seed, run.fold), way.server)
            for run, way in pairs
            if way.every_round() and len(way.server) > 1
        ]
        firsts += scored[:1]
    if not firsts:
        return None
    drawn = firsts[:DRAWN]
    scores = [value for _, _, series in drawn for value in series]
    room = 0.06 * (max(scores) - min(scores)) or 0.05
    limits = min(scores) - room, max(scores) + room
    pictures = []
    for number, (label, which, series) in enumerate(drawn):
        curve = Curve(label, series.index.tolist(), series.tolist())
        fallen = _fallen(series.tolist())
        text = f"{label}, {which}: {_in_words(fallen, curve.rounds)}"
        figure = recovery_figure(curve, fallen, styles[label], f"{metric}, global test", limits)
        pictures.append({"svg": svg(figure, f"falls{number}", f"{metric}, global test. {text}"), "caption": text})
    left = [label for label, _, _ in firsts[DRAWN:]]
    return {"pictures": pictures, "left": f"Not drawn: {listed(left)}." if left else ""}


def _fallen(series: Sequence[float]) -> list[Fall]:
    made_good = recovery_intervals(series)
    return [Fall(*interval, recovers=interval in made_good) for interval in recovery_intervals(series, last=True)]


def _in_words(fallen: Sequence[Fall], rounds: Sequence[int]) -> str:
    ended = [fall for fall in fallen if fall.recovers]
    text = count(len(ended), "recovery interval") if ended else "no recovery interval"
    if ended:
        longest = max(ended, key=lambda fall: fall.end - fall.peak)
        text += f", the longest from round {rounds[longest.peak]} to {rounds[longest.end]}"
    lost = [rounds[fall.peak] for fall in fallen if not fall.recovers]
    return text + (f"; the peak of round {lost[0]} is not reached again." if lost else ".")


def _curves(scored_groups: Sequence[Scored], styles: dict[str, Look], metric: str, over: str) -> list[Meta]:
    """Scores right after training over the rounds, and the global test against the work."""
    pictures = []
    means = f" Mean over the {over}, for the rounds that all have." if over else ""
    local = [curve for group in scored_groups if (curve := trained_curve(group.label, group.ways))]
    if local:
        text = f"{metric} right after training, on the sites' test images: mean over the sites of a round.{means}"
        picture = curves_svg(local, styles, f"{metric}, right after training", "trained", f"{text} {ends(local)}")
        pictures.append({"svg": picture, "caption": text})
    spent = [curve for group in scored_groups if (curve := work_curve(group.label, group.ways))]
    if spent:
        text = (
            f"{metric}, global test, against the {WORK} of all sites, one after the other, without evaluation. The "
            f"seconds depend on the machine, and on what else ran on it.{means}"
        )
        words = f"{text} {ends(spent, f'{{:.0f}} {WORK}')}"
        picture = curves_svg(spent, styles, f"{metric}, global test", "work", words, across=WORK)
        pictures.append({"svg": picture, "caption": text})
    return pictures
