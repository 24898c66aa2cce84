"""Whether an ordering that a paper reports holds in our own runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from medfl.metrics import LOWER_IS_BETTER
from medfl.report import forgetting
from medfl.report.fold_tests import HEADER, PairedTests, explain, p_value, paired_tests
from medfl.report.groups import Group, folds_among, pairs
from medfl.report.matrix import cross_table, global_mean
from medfl.report.runs import RunRecord
from medfl.report.selection import key_metrics
from medfl.report.statistics import Interval, mean_std, paired_t


@dataclass(frozen=True)
class Measure:
    """A number of a run of which larger is better.

    Attributes:
        value: Gives it for a run and a metric; NaN where the run does not tell it.
        metric: Chooses the metric for some groups of runs; None where they share none that fits.
        meaning: What it says, where the study's other tables don't; else empty.
    """

    value: Callable[[RunRecord, str], float]
    metric: Callable[[Sequence[Group]], str | None]
    meaning: str = ""


@dataclass(frozen=True)
class Checked:
    """A claim and what the runs say of it.

    Attributes:
        measure: One of `CLAIMABLE`.
        better: Label of the group that is said to be better.
        than: Label of the group that it is compared with.
        pairs: How many runs both have of the same seed, and fold, on the same data.
        difference: Mean over these of better minus than; NaN without any.
        interval: With its 95 % interval by Student's t; None where none can be computed.
        tests: P-values over folds; all NaN where there are no folds.
        metric: What is measured, for example accuracy; empty where the groups share no metric that fits.
    """

    measure: str
    better: str
    than: str
    pairs: int
    difference: float
    interval: Interval | None
    tests: PairedTests
    metric: str = ""

    @property
    def verdict(self) -> str:
        """``holds`` or ``reversed`` if the interval is on one side of 0, ``n.s.`` if it holds 0, else ``-``."""
        if self.interval is None:
            return "-"
        if not self.interval.decided:
            return "n.s."
        return "holds" if self.difference > 0 else "reversed"


def local_test(run: RunRecord, metric: str) -> float:
    """Mean over the sites of the final score of the model that each takes home, on the site's own test set.

    Sites where it is not defined are left out; NaN if that is all of them.
    """
    scores = [run.score(site, metric) for site in run.run["identity"]["sites"]]
    known = [score for score in scores if score is not None]
    return fmean(known) if known else math.nan


def global_test(run: RunRecord, metric: str) -> float:
    """Mean over all sites' models and all sites' test sets, after the last round; NaN if the run did not test so."""
    table = cross_table(run, metric)
    return math.nan if table is None else global_mean(table)


def check_claim(groups: Sequence[Group], measure: str, better: str, than: str) -> Checked:
    """Compare two groups, seed by seed and fold by fold.

    Args:
        groups: Those that there are; a label that none of them has leaves the claim open.
        measure: One of `CLAIMABLE`.
        better: A label.
        than: A label.
    """
    named, kind = {group.label: group for group in groups}, CLAIMABLE[measure]
    metric = kind.metric(groups)
    both = pairs(named[better], named[than]) if metric and better in named and than in named else []
    values = [[kind.value(run, metric or "") for run in pair] for pair in both]
    gaps = [ours - theirs for ours, theirs in values if math.isfinite(ours - theirs)]
    mean, folds = mean_std(gaps)[0] if gaps else math.nan, folds_among([run for run, _ in both])
    return Checked(
        measure, better, than, len(gaps), mean, paired_t(gaps, folds=folds), paired_tests(gaps, folds), metric or ""
    )


def claims_markdown(claims: Sequence[Checked]) -> str:
    """A table of checked claims; empty without any."""
    if not claims:
        return ""
    tested = any(not math.isnan(one.tests.wilcoxon) for one in claims)
    over, few = ("seeds and folds", "pairs") if tested else ("seeds", "seeds")
    lines = [["claim", "measure", few, "difference", "verdict", *(HEADER if tested else ())]]
    lines.append(["---"] * len(lines[0]))
    for one in claims:
        gap = "-" if math.isnan(one.difference) else f"{one.difference:+.3f}"
        gap += f" [{one.interval.low:+.3f}, {one.interval.high:+.3f}]" if one.interval else ""
        cells = [f"{one.better} > {one.than}", one.measure, str(one.pairs), gap, one.verdict]
        tests = (one.tests.t, one.tests.corrected, one.tests.wilcoxon) if tested else ()
        lines.append([*cells, *map(p_value, tests)])
    notes = [
        f"Difference: paired over the {over} that both have on the same data, with its 95 % interval by Student's t. "
        "A claim holds or is reversed if the interval is on one side of 0; 'n.s.': it holds 0; '-': fewer than two "
        f"{few}, or the same difference in all."
    ]
    notes += [explain(max(one.pairs for one in claims))] if tested else []
    said = {one.measure: f"{one.metric}, {CLAIMABLE[one.measure].meaning}" for one in claims if one.metric}
    notes += [f"{name}: {meaning}." for name, meaning in said.items() if CLAIMABLE[name].meaning]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join(["### Claims\n", *table, "", *(f"- {note}" for note in notes)]) + "\n"


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _first_metric(groups: Sequence[Group]) -> str | None:
    """The first of the `key_metrics` of which larger is better."""
    return next((name for name in key_metrics(groups) if name not in LOWER_IS_BETTER), None)


def _forgetting(name: str) -> Measure:
    return Measure(
        lambda run, metric: forgetting.measures(run, metric).get(name, math.nan), forgetting.forgetting_metric
    )


CLAIMABLE: dict[str, Measure] = {name: _forgetting(name) for name in forgetting.CLAIMABLE} | {
    "local_test": Measure(
        local_test, _first_metric, "mean over the sites of the model that each takes home, on its own test set"
    ),
    "global_test": Measure(
        global_test,
        _first_metric,
        "mean over all sites' models and all sites' test sets, of runs with the setting `global_test`",
    ),
    "shared_test": Measure(
        lambda run, metric: _known(run.shared(metric)),
        _first_metric,
        "mean over the sites of the model that each takes home, on the server's test set",
    ),
    "public_test": Measure(
        lambda run, metric: _known(run.at_server(metric, "public_test")),
        _first_metric,
        "the server's model on public test images",
    ),
}
"""Name of each measure that a study's claims may be about, to how it is computed."""
