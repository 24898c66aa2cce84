"""Whether an ordering that a paper reports holds in our own runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from medfl.report.forgetting import measures
from medfl.report.groups import Group, pairs
from medfl.report.statistics import Interval, mean_std, paired_t


@dataclass(frozen=True)
class Checked:
    """A claim and what the runs say of it.

    Attributes:
        measure: One of `medfl.report.forgetting.CLAIMABLE`.
        better: Label of the group that is said to be better.
        than: Label of the group that it is compared with.
        seeds: How many seeds both have on the same data.
        difference: Mean over these seeds of better minus than; NaN without any.
        interval: With its 95 % interval by Student's t; None where none can be computed.
    """

    measure: str
    better: str
    than: str
    seeds: int
    difference: float
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """``holds`` or ``reversed`` if the interval is on one side of 0, ``n.s.`` if it holds 0, else ``-``."""
        if self.interval is None:
            return "-"
        if not self.interval.decided:
            return "n.s."
        return "holds" if self.difference > 0 else "reversed"


def check_claim(groups: Sequence[Group], measure: str, better: str, than: str, metric: str) -> Checked:
    """Compare two groups seed by seed.

    Args:
        groups: Those that there are; a label that none of them has leaves the claim open.
        measure: One of `medfl.report.forgetting.CLAIMABLE`.
        better: A label.
        than: A label.
        metric: What is measured, for example accuracy.
    """
    named = {group.label: group for group in groups}
    both = pairs(named[better], named[than]) if better in named and than in named else []
    values = [[measures(run, metric).get(measure, math.nan) for run in pair] for pair in both]
    gaps = [ours - theirs for ours, theirs in values if math.isfinite(ours - theirs)]
    return Checked(measure, better, than, len(gaps), mean_std(gaps)[0] if gaps else math.nan, paired_t(gaps))


def claims_markdown(claims: Sequence[Checked]) -> str:
    """A table of checked claims; empty without any."""
    if not claims:
        return ""
    lines = ["| claim | measure | seeds | difference | verdict |", "| --- | --- | --- | --- | --- |"]
    for one in claims:
        gap = "-" if math.isnan(one.difference) else f"{one.difference:+.3f}"
        gap += f" [{one.interval.low:+.3f}, {one.interval.high:+.3f}]" if one.interval else ""
        lines.append(f"| {one.better} > {one.than} | {one.measure} | {one.seeds} | {gap} | {one.verdict} |")
    note = (
        "- Difference: paired over the seeds that both have on the same data, with its 95 % interval by Student's t. "
        "A claim holds or is reversed if the interval is on one side of 0; 'n.s.': it holds 0; '-': fewer than two "
        "seeds, or the same difference in all."
    )
    return "\n".join(["### Claims\n", *lines, "", note]) + "\n"
