"""The section that a hospital reads first: does a site gain by training with others?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medfl.contract import Meta
from medfl.metrics import LOWER_IS_BETTER, worst
from medfl.report.formats import count, listed, score
from medfl.report.gains import GAINS, LOSES, UNCLEAR, Comparison, Gain, Sets, compare_sites, mean_known, pair_up
from medfl.report.groups import Group
from medfl.report.scores import site_scores
from medfl.report.selection import ALONE, key_metrics
from medfl.report.words import metric_words


@dataclass(frozen=True)
class Against:
    """A group against the sites alone: comparisons by each key metric, what they say in words, and notes."""

    label: str
    verdict: str
    notes: list[str]
    metrics: list[Comparison]


def gains_section(groups: Sequence[Group], tested: Mapping[str, Sets]) -> Meta:
    """The first section: each method against the sites alone, or plain scores where there is nothing to compare."""
    metrics = key_metrics(groups)
    alone = [group for group in groups if group.method == ALONE]
    others = [group for group in groups if group.method != ALONE]
    comparisons, left = [], list(alone) if not others else []
    for group in others:
        found = _against(alone, group, metrics, tested)
        comparisons += [found] if found else []
        left += [] if found else [group]
    tables = [_plain_table(group, metrics, tested) for group in left]
    unshared = [] if metrics else ["The runs have no metric in common, so there is nothing to compare them by."]
    return {
        "comparisons": comparisons,
        "plain": [table for table in tables if table["metrics"]],
        "sentences": [*unshared, *_missing(alone, others, left), *_unscored(left)],
        "several": any(len(group.runs) > 1 for group in groups),
    }


def _against(
    alone: Sequence[Group], group: Group, metrics: Sequence[str], tested: Mapping[str, Sets]
) -> Against | None:
    """A comparison with the first of the groups that has the same data; None without one, or without scores."""
    for base in alone:
        pairs = [pair for pair in pair_up(base, group) if pair.alone.summary and pair.other.summary]
        if not pairs:
            continue
        found = [compare_sites(metric, group.label, pairs, tested) for metric in metrics]
        scored = [one for one in found if one.mean.difference is not None]
        if not scored:
            return None
        notes = []
        if len(pairs) < len(group.runs):
            notes.append(
                f"{len(pairs)} of the {len(group.runs)} runs of {group.label} are compared: the others are not over, "
                f"or no finished run of {base.label} has the same data."
            )
        unlike = [pair for pair in pairs if pair.alone.seed != pair.other.seed]
        if unlike:
            seeds = listed([f"{one.other.seed} against {one.alone.seed}" for one in unlike])
            notes.append(f"Seeds differ: {seeds}. So the runs also differ by the luck of their first model.")
        return Against(group.label, _in_words(scored[0]), notes, scored)
    return None


def _in_words(one: Comparison) -> str:
    """The result in one sentence."""
    known = [row for row in one.rows if row.low is not None]
    mean = f"On average over the sites the {metric_words(one.metric)} goes from {score(one.mean.alone)} alone to "
    mean += f"{score(one.mean.other)} with {one.name}"
    if not known:
        return f"{mean}; there is no interval to say how sure that is."
    gained, lost = one.count(GAINS), one.count(LOSES)
    open_ = len(known) - gained - lost
    parts = [(gained, "gain" if gained != 1 else "gains"), (lost, "lose" if lost != 1 else "loses")]
    parts.append((open_, f"show{'s' if open_ == 1 else ''} {UNCLEAR}"))
    return (
        f"{mean}. Of {count(len(known), 'site')}: {listed([f'{number} {words}' for number, words in parts if number])}."
    )


def _missing(alone: Sequence[Group], others: Sequence[Group], left: Sequence[Group]) -> list[str]:
    if not alone:
        return [
            "Give a run of the method local as well to see who gains: medfl report RUN LOCAL_RUN. Until then these "
            "are the scores by themselves."
        ]
    if not others:
        return [
            "Here every site trained alone. Give a run of another method as well to see who gains: "
            "medfl report RUN LOCAL_RUN."
        ]
    if not left:
        return []
    names = listed([group.label for group in left])
    return [f"There is no difference to show for {names}: no run alone on the same data has scores to compare with."]


def _unscored(left: Sequence[Group]) -> list[str]:
    names = [group.label for group in left if not any(run.summary.get("scores") for run in group.runs)]
    return [f"There are no final scores of {listed(names)}."] if names else []


def _plain_table(group: Group, metrics: Sequence[str], tested: Mapping[str, Sets]) -> Meta:
    """Sites in rows, metrics in columns, without the metrics that no site has."""
    columns = {metric: site_scores(group, metric, tested) for metric in metrics}
    known = {name: [one.value for one in found if one.value is not None] for name, found in columns.items()}
    shown = [name for name in metrics if known[name]]
    return {
        "label": group.label,
        "metrics": shown,
        "rows": list(zip(*(columns[name] for name in shown), strict=True)),
        "wilson": any(one.low is not None for name in shown for one in columns[name]),
        "mean": [mean_known(known[name]) for name in shown],
        "worst": [worst(name, known[name]) for name in shown],
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
