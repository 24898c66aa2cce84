"""Check of a study's claims: whether an ordering of two methods holds in the study's runs.

A claim of a paper says that one method is better than another in some measure.

A group is a set of runs of one method that differ only in seed and fold. A site exports its personal model if the
method trains one, else the global model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from typing import Any

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.metrics import LOWER_IS_BETTER_METRICS
from medfl.utils.formats import p_value, plus_minus, table_lines
from medfl_report import forgetting
from medfl_report.groups import Group, folds_among, pairs, split_ratio
from medfl_report.patient_tests import (
    NO_PREDICTIONS,
    MethodTest,
    PatientTest,
    PredictionSets,
    compare_methods,
    method_test,
    sets_reader,
)
from medfl_report.scores import key_metrics
from medfl_report.sections.cross_site import cross_site_score, mean_defined, spread
from medfl_report.statistics import HEADER, Interval, PairedTests, explain, holm, mean_std, paired_tests


@dataclass(frozen=True)
class ClaimMeasure:
    """Measure of a run by which methods are compared; larger is better.

    Attributes:
        value: Returns the measure of a run in a metric; NaN if it is not known.
        metric: Returns the metric for groups of runs; None if they share no suitable metric.
        meaning: Definition, for measures that the study's other tables do not define; else empty.
        spread: Returns the standard deviation (ddof = 1) over the sites' models, if the measure is a mean over these;
            else NaN.
        of_predictions: True if the measure is a metric of the predictions in the run folders, as a mean over the sites.
            A test over the test patients is then possible.
        at_sites: True if the measure is about the sites' test sets, which differ if the data are partitioned again for
            each seed; False if it is about a test set of the server.
    """

    value: Callable[[RunRecord, str], float]
    metric: Callable[[Sequence[Group]], str | None]
    meaning: str = ""
    spread: Callable[[RunRecord, str], float] = lambda run, metric: math.nan
    of_predictions: bool = False
    at_sites: bool = False


@dataclass(frozen=True)
class ClaimSide:
    """One of the two methods of a claim, over the runs that both methods have. Unknown values are NaN.

    Attributes:
        mean: Mean of the measure.
        std: Standard deviation (ddof = 1) over the runs.
        spread: Standard deviation over the sites' models, as mean over the runs.
    """

    mean: float = math.nan
    std: float = math.nan
    spread: float = math.nan


@dataclass(frozen=True)
class ClaimCheck:
    """A claim and the result of the check.

    Attributes:
        measure: Name of the measure, a key of `CLAIMABLE`.
        better: Label of the method that is claimed to be better.
        than: Label of the other method.
        pairs: Number of pairs of runs with the same seed and fold on the same data.
        difference: Difference better - than, mean over the pairs; NaN without a pair.
        test: Test over the runs and over the test patients, with the 95 % interval of the difference.
        tests: P-values of tests over the pairs of folds; all NaN without folds.
        ours: Values of the method that is claimed to be better.
        theirs: Values of the other method.
        metric: Metric of the measure, for example accuracy; empty if the groups share no suitable metric.
        p_holm: P-value of the claim, adjusted for the other claims of the page (`correct_claims`).
    """

    measure: str
    better: str
    than: str
    pairs: int
    difference: float
    test: MethodTest
    tests: PairedTests
    ours: ClaimSide
    theirs: ClaimSide
    metric: str = ""
    p_holm: float = math.nan

    @property
    def interval(self) -> Interval | None:
        """95 % confidence interval of the difference; None if it can't be computed."""
        return self.test.over_runs.interval

    @property
    def over_patients(self) -> PatientTest:
        """Test over the test patients, for measures of predictions."""
        return self.test.over_patients

    @property
    def effect(self) -> str:
        """Result in words.

        ``holds`` or ``reversed`` if the difference is significant; otherwise ``too few patients``, ``too few runs``,
        ``n.s.``, or ``-`` without an interval.
        """
        return self.test.effect(("holds", "reversed"), self.p_holm)


def own_scores(run: RunRecord, metric: str) -> list[float]:
    """Return the final score of each site's exported model on the site's own test set, where the score is defined."""
    scores = [run.score(site, metric) for site in run.sites]
    return [score for score in scores if score is not None]


def check_claim(
    groups: Sequence[Group],
    measure: str,
    better: str,
    than: str,
    sets_of: Callable[[RunRecord], PredictionSets] | None = None,
) -> ClaimCheck:
    """Compare two groups of a claim, paired by seed and fold.

    Args:
        groups: Groups of runs. If no group has a label of the claim, the check has no pairs.
        measure: Name of the measure, a key of `CLAIMABLE`.
        better: Label of the method that is claimed to be better.
        than: Label of the other method.
        sets_of: Function that returns the test sets of a run with predictions; None for a new reader of the run
            folders (`medfl_report.patient_tests.sets_reader`). Share one reader between several claims to read each run
            once.
    """
    named, kind = {group.label: group for group in groups}, CLAIMABLE[measure]
    metric = kind.metric(groups)
    both = pairs(named[better], named[than]) if metric and better in named and than in named else []
    values = [[kind.value(run, metric or "") for run in pair] for pair in both]
    differences = [ours - theirs for ours, theirs in values]
    gaps = [difference for difference in differences if math.isfinite(difference)]
    scored = list(compress(both, map(math.isfinite, differences)))
    mean = mean_std(gaps)[0] if gaps else math.nan
    test = measure_test(measure, metric or "", both, differences, sets_of or sets_reader())
    tests = paired_tests(gaps, folds_among([run for run, _ in both]))
    ours, theirs = (_side(kind, metric or "", [pair[side] for pair in scored]) for side in (0, 1))
    return ClaimCheck(measure, better, than, len(gaps), mean, test, tests, ours, theirs, metric or "", p_holm=test.p)


def measure_test(
    measure: str,
    metric: str,
    both: Sequence[tuple[RunRecord, RunRecord]],
    differences: Sequence[float],
    sets_of: Callable[[RunRecord], PredictionSets],
    over_patients: PatientTest | None = None,
) -> MethodTest:
    """Test whether two methods differ in a measure, over their pairs of runs and over the test patients.

    Args:
        measure: Name of the measure, a key of `CLAIMABLE`.
        metric: Metric of the measure.
        both: Pairs (run of one method, run of the other) on the same data.
        differences: Difference of the measure for each pair; NaN if it is not defined.
        sets_of: Function that returns the test sets of a run with predictions.
        over_patients: Test over other patients than those of the sites' test sets; None tests these, if the measure is
            computed from predictions.
    """
    kind = CLAIMABLE[measure]
    gaps = [difference for difference in differences if math.isfinite(difference)]
    if over_patients is None:
        over_patients = PatientTest(reason=NO_PREDICTIONS)
        if kind.of_predictions and len(gaps) > 1:
            over_patients = method_test(list(compress(both, map(math.isfinite, differences))), metric, sets_of)
    runs = [run for run, _ in both]
    has_own_splits = kind.at_sites or folds_among(runs) is not None
    return compare_methods(gaps, split_ratio(runs) if has_own_splits else None, over_patients)


def correct_claims(claims: Sequence[ClaimCheck]) -> list[ClaimCheck]:
    """Return the claims of a page with p-values adjusted by Holm's procedure."""
    adjusted = holm([claim.test.p for claim in claims])
    return [replace(claim, p_holm=p) for claim, p in zip(claims, adjusted, strict=True)]


def _side(kind: ClaimMeasure, metric: str, runs: Sequence[RunRecord]) -> ClaimSide:
    if not runs:
        return ClaimSide()
    mean, std = mean_std([kind.value(run, metric) for run in runs])
    return ClaimSide(mean, math.nan if std is None else std, mean_defined(kind.spread(run, metric) for run in runs))


def claims_table(claims: Sequence[ClaimCheck]) -> pd.DataFrame:
    """Return a table with a row for each claim.

    Args:
        claims: The checked claims.

    Returns:
        Columns: measure, metric, better, than, pairs; mean, std over the runs and spread over the models of a run of
        both methods, with the prefixes ``better_`` and ``than_``; difference, low, high, effect, p_patients,
        p_claim, p_holm, p_t, p_corrected, p_wilcoxon. Missing values are NaN.
    """
    rows = []
    for claim in claims:
        row: dict[str, Any] = {name: getattr(claim, name) for name in ("measure", "metric", "better", "than", "pairs")}
        for name, side in (("better", claim.ours), ("than", claim.theirs)):
            row |= {f"{name}_{part}": value for part, value in asdict(side).items()}
        interval = claim.interval or Interval(math.nan, math.nan, math.nan)
        row |= {"difference": claim.difference, "low": interval.low, "high": interval.high, "effect": claim.effect}
        tests = {"p_t": claim.tests.t, "p_corrected": claim.tests.corrected, "p_wilcoxon": claim.tests.wilcoxon}
        row["p_patients"] = math.nan if claim.over_patients.p is None else claim.over_patients.p
        row |= {"p_claim": claim.test.p, "p_holm": claim.p_holm}
        rows.append(row | tests)
    return pd.DataFrame(rows)


def claims_markdown(claims: Sequence[ClaimCheck]) -> str:
    """Return a Markdown table of checked claims with explanations; empty without claims."""
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
            "effect",
            *(HEADER if tested else ()),
        ]
    ]
    for claim in claims:
        gap = "-" if math.isnan(claim.difference) else f"{claim.difference:+.3f}"
        gap += f" [{claim.interval.low:+.3f}, {claim.interval.high:+.3f}]" if claim.interval else ""
        sides = [plus_minus(side.mean, side.std) for side in (claim.ours, claim.theirs)]
        cells = [f"{claim.better} > {claim.than}", claim.measure, str(claim.pairs), *sides, gap]
        cells += [p_value(math.nan if claim.over_patients.p is None else claim.over_patients.p), claim.effect]
        tests = (claim.tests.t, claim.tests.corrected, claim.tests.wilcoxon) if tested else ()
        lines.append([*cells, *map(p_value, tests)])
    notes = [
        f"Better, than: mean ± standard deviation (ddof = 1) over the {over} that both have on the same data. "
        "Difference: paired over these, with its 95 % confidence interval: over seeds and test patients, over splits, "
        "or over seeds alone. A claim holds or is reversed if the p-value of the interval and p (patients), a test "
        "over the test patients, are both at most 0.05 after Holm's correction for the claims of this table; otherwise "
        "'n.s.'. '(seeds only)': there are no predictions for this measure, so that other test patients may give "
        f"another result. '-': fewer than two {few}, or the same difference in all."
    ]
    notes += [explain(max(claim.pairs for claim in claims))] if tested else []
    meanings = {
        claim.measure: f"{claim.metric}, {CLAIMABLE[claim.measure].meaning}" for claim in claims if claim.metric
    }
    notes += [f"{name}: {meaning}." for name, meaning in meanings.items() if CLAIMABLE[name].meaning]
    return "\n".join(["### Claims\n", table_lines(lines), "", *(f"- {note}" for note in notes)]) + "\n"


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value


def _first_metric(groups: Sequence[Group]) -> str | None:
    """Return the first of the `key_metrics` in which larger is better; None without one."""
    return next((name for name in key_metrics(groups) if name not in LOWER_IS_BETTER_METRICS), None)


def _forgetting(name: str) -> ClaimMeasure:
    return ClaimMeasure(
        lambda run, metric: forgetting.measures(run, metric).get(name, math.nan),
        forgetting.forgetting_metric,
        at_sites=name.startswith("local"),
    )


CLAIMABLE: dict[str, ClaimMeasure] = {name: _forgetting(name) for name in forgetting.CLAIMABLE} | {
    "local_test": ClaimMeasure(
        lambda run, metric: mean_defined(own_scores(run, metric)),
        _first_metric,
        "mean over the sites of their exported models, each on its own site's test set",
        lambda run, metric: spread(own_scores(run, metric)),
        of_predictions=True,
        at_sites=True,
    ),
    "cross_site_test": ClaimMeasure(
        lambda run, metric: cross_site_score(run, metric)[0],
        _first_metric,
        "mean over all sites' models and all sites' test sets, of runs with the setting `cross_site_evaluation`",
        lambda run, metric: cross_site_score(run, metric)[1],
        at_sites=True,
    ),
    "shared_test": ClaimMeasure(
        lambda run, metric: _nan_if_none(run.shared(metric)),
        _first_metric,
        "mean over the sites of their exported models, each on the server's test set",
    ),
    "public_test": ClaimMeasure(
        lambda run, metric: _nan_if_none(run.server_score(metric, "public_test")),
        _first_metric,
        "the global model on the public test set",
    ),
}
"""Maps the name of each measure of a study's claims to its computation."""
