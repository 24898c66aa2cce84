"""Whether an ordering that a paper reports holds in our own runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from typing import Any

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.metrics import LOWER_IS_BETTER
from medfl.utils.formats import p_value, plus_minus, table_lines
from medfl_report import forgetting
from medfl_report.groups import Group, folds_among, pairs
from medfl_report.patient_tests import NO_PREDICTIONS, PatientTest, Sets, method_test, sets_reader, verdict_over_runs
from medfl_report.scores import key_metrics
from medfl_report.sections.matrix import cross_site_score, mean_defined, spread
from medfl_report.statistics import HEADER, Interval, PairedTests, explain, mean_std, paired_t, paired_tests


@dataclass(frozen=True)
class Measure:
    """A number of a run of which larger is better.

    Attributes:
        value: Gives it for a run and a metric; NaN where the run does not tell it.
        metric: Chooses the metric for some groups of runs; None where they share none that fits.
        meaning: What it says, where the study's other tables don't; else empty.
        spread: Of a mean over the sites' models: its standard deviation (ddof = 1) over these; NaN of anything else.
        of_predictions: Whether it is the mean over the sites of a metric of the predictions that run folders keep.
    """

    value: Callable[[RunRecord, str], float]
    metric: Callable[[Sequence[Group]], str | None]
    meaning: str = ""
    spread: Callable[[RunRecord, str], float] = lambda run, metric: math.nan
    of_predictions: bool = False


@dataclass(frozen=True)
class Side:
    """One side of a claim, over the runs that both sides have; NaN for what is not known.

    Attributes:
        mean: Of the measure.
        std: Its standard deviation (ddof = 1) over the runs.
        spread: Mean over the runs of its standard deviation over the sites' models.
    """

    mean: float = math.nan
    std: float = math.nan
    spread: float = math.nan


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
        over_patients: Test over the test patients of these runs, for measures of which predictions are kept.
        ours: The side that is said to be better.
        theirs: The other one.
        metric: What is measured, for example accuracy; empty where the groups share no metric that fits.
    """

    measure: str
    better: str
    than: str
    pairs: int
    difference: float
    interval: Interval | None
    tests: PairedTests
    ours: Side
    theirs: Side
    metric: str = ""
    over_patients: PatientTest = PatientTest(reason=NO_PREDICTIONS)

    @property
    def verdict(self) -> str:
        """``holds`` or ``reversed``, or what `medfl_report.patient_tests.verdict_over_runs` says else."""
        return verdict_over_runs(self.interval, self.over_patients, ("holds", "reversed"))


def own_scores(run: RunRecord, metric: str) -> list[float]:
    """The final score of the model that each site takes home, on the site's own test set, where it is defined."""
    scores = [run.score(site, metric) for site in run.sites]
    return [score for score in scores if score is not None]


def check_claim(
    groups: Sequence[Group],
    measure: str,
    better: str,
    than: str,
    sets_of: Callable[[RunRecord], Sets] | None = None,
) -> Checked:
    """Compare two groups, seed by seed and fold by fold.

    Args:
        groups: Those that there are; a label that none of them has leaves the claim open.
        measure: One of `CLAIMABLE`.
        better: A label.
        than: A label.
        sets_of: Returns the test sets of a run; by default they are read from its folder. Give one
            `medfl_report.patient_tests.sets_reader` to check several claims.
    """
    named, kind = {group.label: group for group in groups}, CLAIMABLE[measure]
    metric = kind.metric(groups)
    both = pairs(named[better], named[than]) if metric and better in named and than in named else []
    values = [[kind.value(run, metric or "") for run in pair] for pair in both]
    defined = [math.isfinite(ours - theirs) for ours, theirs in values]
    gaps = [ours - theirs for ours, theirs in compress(values, defined)]
    mean, folds = mean_std(gaps)[0] if gaps else math.nan, folds_among([run for run, _ in both])
    interval, tests = paired_t(gaps, folds=folds), paired_tests(gaps, folds)
    ours, theirs = (_side(kind, metric or "", [pair[side] for pair in compress(both, defined)]) for side in (0, 1))
    checked = Checked(measure, better, than, len(gaps), mean, interval, tests, ours, theirs, metric or "")
    if not kind.of_predictions or interval is None:
        return checked
    scored = list(compress(both, defined))
    return replace(checked, over_patients=method_test(scored, checked.metric, sets_of or sets_reader()))


def _side(kind: Measure, metric: str, runs: Sequence[RunRecord]) -> Side:
    if not runs:
        return Side()
    mean, std = mean_std([kind.value(run, metric) for run in runs])
    return Side(mean, math.nan if std is None else std, mean_defined(kind.spread(run, metric) for run in runs))


def claims_table(claims: Sequence[Checked]) -> pd.DataFrame:
    """A row for each claim.

    Args:
        claims: The claims.

    Returns:
        Columns: measure, metric, better, than, pairs; of both sides (``better_`` and ``than_``) mean, std over the runs
        and spread over the models of a run; difference, low, high, verdict, p_patients, p_t, p_corrected, p_wilcoxon.
        What is not there is NaN.
    """
    rows = []
    for claim in claims:
        row: dict[str, Any] = {name: getattr(claim, name) for name in ("measure", "metric", "better", "than", "pairs")}
        for name, side in (("better", claim.ours), ("than", claim.theirs)):
            row |= {f"{name}_{part}": value for part, value in asdict(side).items()}
        interval = claim.interval or Interval(math.nan, math.nan, math.nan)
        row |= {"difference": claim.difference, "low": interval.low, "high": interval.high, "verdict": claim.verdict}
        tests = {"p_t": claim.tests.t, "p_corrected": claim.tests.corrected, "p_wilcoxon": claim.tests.wilcoxon}
        row["p_patients"] = math.nan if claim.over_patients.p is None else claim.over_patients.p
        rows.append(row | tests)
    return pd.DataFrame(rows)


def claims_markdown(claims: Sequence[Checked]) -> str:
    """A table of checked claims; empty without any."""
    if not claims:
        return ""
    tested = any(not math.isnan(claim.tests.wilcoxon) for claim in claims)
    over, few = ("seeds and folds", "pairs") if tested else ("seeds", "seeds")
    lines = [
        [
            "claim",
            "measure",
            few,
            "better",
            "than",
            "difference",
            "p (patients)",
            "verdict",
            *(HEADER if tested else ()),
        ]
    ]
    for claim in claims:
        gap = "-" if math.isnan(claim.difference) else f"{claim.difference:+.3f}"
        gap += f" [{claim.interval.low:+.3f}, {claim.interval.high:+.3f}]" if claim.interval else ""
        sides = [plus_minus(side.mean, side.std) for side in (claim.ours, claim.theirs)]
        cells = [f"{claim.better} > {claim.than}", claim.measure, str(claim.pairs), *sides, gap]
        cells += [p_value(math.nan if claim.over_patients.p is None else claim.over_patients.p), claim.verdict]
        tests = (claim.tests.t, claim.tests.corrected, claim.tests.wilcoxon) if tested else ()
        lines.append([*cells, *map(p_value, tests)])
    notes = [
        f"Better, than: mean ± standard deviation (ddof = 1) over the {over} that both have on the same data. "
        "Difference: paired over these, with its 95 % interval by Student's t. "
        "A claim holds or is reversed if the interval is on one side of 0 and p (patients), an exchange test over the "
        "test patients, is at most 0.05; otherwise 'n.s.'. '(seeds only)': of this measure no predictions are kept, so "
        f"that another choice of test patients may give another result. '-': fewer than two {few}, or the same "
        "difference in all. The 5 % refer to each claim alone."
    ]
    notes += [explain(max(claim.pairs for claim in claims))] if tested else []
    meanings = {
        claim.measure: f"{claim.metric}, {CLAIMABLE[claim.measure].meaning}" for claim in claims if claim.metric
    }
    notes += [f"{name}: {meaning}." for name, meaning in meanings.items() if CLAIMABLE[name].meaning]
    return "\n".join(["### Claims\n", table_lines(lines), "", *(f"- {note}" for note in notes)]) + "\n"


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
        lambda run, metric: mean_defined(own_scores(run, metric)),
        _first_metric,
        "mean over the sites of the model that each takes home, on its own test set",
        lambda run, metric: spread(own_scores(run, metric)),
        of_predictions=True,
    ),
    "global_test": Measure(
        lambda run, metric: cross_site_score(run, metric)[0],
        _first_metric,
        "mean over all sites' models and all sites' test sets, of runs with the setting `global_test`",
        lambda run, metric: cross_site_score(run, metric)[1],
    ),
    "shared_test": Measure(
        lambda run, metric: _known(run.shared(metric)),
        _first_metric,
        "mean over the sites of the model that each takes home, on the server's test set",
    ),
    "public_test": Measure(
        lambda run, metric: _known(run.server_score(metric, "public_test")),
        _first_metric,
        "the server's model on public test images",
    ),
}
"""Name of each measure that a study's claims may be about, to how it is computed."""
