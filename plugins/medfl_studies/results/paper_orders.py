"""Compare the order of methods in a table or figure of a paper with the order in the runs of a study.

An order says that a method of the paper is better than another one in a column. It holds or is reversed if the test
of the difference is significant after Holm's correction for all comparisons of the table or figure; otherwise it is
open. A row of a study is a method with settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Literal

from scipy.stats import spearmanr

from medfl.engine.runs.records import RunRecord
from medfl_report import forgetting
from medfl_report.claims import CLAIMABLE, measure_test
from medfl_report.groups import Group, pairs
from medfl_report.patient_tests import MethodTest, PatientTest, PredictionSets, method_test, sets_reader
from medfl_report.statistics import LEVEL, holm
from medfl_report.statistics.repetitions import mean_std
from medfl_studies.records.paper_items import Paper, PaperColumn, PaperItem
from medfl_studies.results.page_statistics import Estimate
from medfl_studies.results.recorded_study import StudyResults, server_run

Verdict = Literal["holds", "reversed", "open"]
"""Result for an order of two methods."""

SERVER_MEASURES = ("global_final", "shared_test")
"""Measures that are scores of the global model on the server's test images, if the sites have no models of their own.

Their tests over patients use the predictions for these images, where the raw results have them.
"""


@dataclass(frozen=True)
class Order:
    """An order of two methods in a paper, and the difference between them in the runs.

    Attributes:
        better: Method that is better in the paper.
        worse: The other method.
        difference: Measure of `better` minus that of `worse`, as a mean over their pairs of runs, with its interval
            and the uncorrected p-value; None without a pair of runs with the measure.
        test: Test of the difference.
        p_holm: P-value after Holm's correction; NaN without a test.
    """

    better: str
    worse: str
    difference: Estimate | None
    test: MethodTest
    p_holm: float = math.nan

    @property
    def verdict(self) -> Verdict:
        """Result of the test with the corrected p-value."""
        return self._verdict_at(self.p_holm)

    @property
    def is_over_seeds_only(self) -> bool:
        """True if there is no test over patients, so that the verdict is about the seeds alone."""
        return self.test.over_patients.p is None

    @property
    def result(self) -> str:
        """The verdict, with the addition "(seeds only)" if it is not open and there is no test over patients."""
        return f"{self.verdict} (seeds only)" if self.verdict != "open" and self.is_over_seeds_only else self.verdict

    @property
    def uncorrected(self) -> Verdict:
        """Result of the test without a correction."""
        return self._verdict_at(self.test.p)

    def _verdict_at(self, p: float) -> Verdict:
        if self.difference is None or not p <= LEVEL:
            return "open"
        return "holds" if self.difference.value > 0 else "reversed"


@dataclass(frozen=True)
class ColumnResult:
    """A column of a paper beside the runs.

    Attributes:
        column: The column.
        ours: Maps each method with runs to its measure over the runs; None if it is not defined.
        orders: Orders of the paper between methods with runs.
        correlation: Spearman's rank correlation of the paper's numbers and the measures; None for fewer than three
            methods with both.
    """

    column: PaperColumn
    ours: dict[str, Estimate | None]
    orders: tuple[Order, ...]
    correlation: float | None


@dataclass(frozen=True)
class ItemResult:
    """A table or figure of a paper beside the runs.

    Attributes:
        paper: The paper.
        item: The table or figure.
        results: Raw results of the study; None if it was not run.
        columns: Its columns.
        tests: Number of comparisons in Holm's correction.
    """

    paper: Paper
    item: PaperItem
    results: StudyResults | None
    columns: tuple[ColumnResult, ...]
    tests: int

    @property
    def orders(self) -> tuple[Order, ...]:
        """Orders of all columns."""
        return tuple(order for column in self.columns for order in column.orders)

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """Runs of the item's rows on its data sets."""
        groups = [group for data in self.data for group in method_groups(self.item, self.results, data).values()]
        return tuple(run for group in groups for run in group.runs)

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the study's data sets of the columns, curves and groups."""
        names = [column.data for column in self.item.columns if column.data is not None]
        names += [curve.data for curve in self.item.curves]
        names += [] if self.item.groups is None else [self.item.groups.data]
        return tuple(dict.fromkeys(names))

    @property
    def unfinished(self) -> int:
        """Number of runs without results of the item's rows on its data sets."""
        rows = {*self.item.rows.values()}
        missing = () if self.results is None else self.results.raw.unfinished
        return sum(run.row in rows and run.data in self.data for run in missing)

    def count(self, verdict: Verdict, corrected: bool = True) -> int:
        """Return the number of orders with a verdict, with or without the correction for all comparisons."""
        return sum((order.verdict if corrected else order.uncorrected) == verdict for order in self.orders)

    def count_seeds_only(self, verdict: Verdict, corrected: bool = True) -> int:
        """Return the number of orders with a verdict, as `count`, that have no test over patients."""
        orders = [order for order in self.orders if order.is_over_seeds_only]
        return sum((order.verdict if corrected else order.uncorrected) == verdict for order in orders)

    @property
    def untested(self) -> int:
        """Number of orders without a test: fewer than three pairs of runs, or too few patients."""
        return sum(math.isnan(order.test.p) for order in self.orders)

    @property
    def same_sign(self) -> int:
        """Number of orders whose difference in the runs has the sign of the paper."""
        return sum(order.difference is not None and order.difference.value > 0 for order in self.orders)


class MeasureReader:
    """Measures of runs, each computed once.

    Args:
        sets_of: Function that returns the test sets of a run with predictions, and reads each run once.

    Attributes:
        sets_of: As given.
    """

    def __init__(self, sets_of: Callable[[RunRecord], PredictionSets]) -> None:
        self._values: dict[tuple[Path, str, str], float] = {}
        self._forgetting: dict[tuple[Path, str], dict[str, float]] = {}
        self.sets_of = sets_of

    def value(self, run: RunRecord, measure: str, metric: str) -> float:
        """Return a measure of a run; NaN if it is not known."""
        key = (run.folder, measure, metric)
        if key not in self._values:
            self._values[key] = self._compute(run, measure, metric)
        return self._values[key]

    def _compute(self, run: RunRecord, measure: str, metric: str) -> float:
        if metric not in run.task_metrics:
            return math.nan
        if measure not in forgetting.CLAIMABLE:
            return CLAIMABLE[measure].value(run, metric)
        place = (run.folder, metric)
        if place not in self._forgetting:
            self._forgetting[place] = forgetting.measures(run, metric)
        return self._forgetting[place].get(measure, math.nan)


def item_result(paper: Paper, item: PaperItem, results: StudyResults | None) -> ItemResult:
    """Compare a table or figure of a paper with the runs of a study.

    Args:
        paper: The paper.
        item: The table or figure.
        results: Raw results of the study; None if it was not run.
    """
    reader = MeasureReader(sets_reader() if results is None else results.read_sets)
    columns = [_column_result(item, column, results, reader) for column in item.columns]
    tests = _distinct_tests(item, columns)
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    return ItemResult(paper, item, results, tuple(_correct(item, column, corrected) for column in columns), len(tests))


def method_groups(item: PaperItem, results: StudyResults | None, data: str | None) -> dict[str, Group]:
    """Return the runs of each method of a paper on a data set of the study, labelled with the method."""
    groups = {} if results is None or data is None else results.groups(data)
    return {method: Group(method, groups[row].runs) for method, row in item.rows.items() if row in groups}


def _column_result(
    item: PaperItem, column: PaperColumn, results: StudyResults | None, reader: MeasureReader
) -> ColumnResult:
    groups = method_groups(item, results, column.data)
    ours = {method: _estimate(group, column, reader) for method, group in groups.items()}
    orders = [
        _compare(groups[better], groups[worse], column, reader)
        for better, worse in _paper_orders(column)
        if better in groups and worse in groups and item.rows[better] != item.rows[worse]
    ]
    return ColumnResult(column, ours, tuple(orders), _correlation(column, ours))


def _paper_orders(column: PaperColumn) -> list[tuple[str, str]]:
    """Return the pairs (better, worse) of methods with different printed numbers, and the stated orders."""
    printed = [
        (first, second) if column.printed[first] > column.printed[second] else (second, first)
        for first, second in combinations(column.printed, 2)
        if column.printed[first] != column.printed[second]
    ]
    return [*printed, *column.orders]


def _estimate(group: Group, column: PaperColumn, reader: MeasureReader) -> Estimate | None:
    """Return the measure of a method over its runs; None if it is not defined."""
    assert column.measure is not None  # the column has a data set, therefore a measure
    values = [reader.value(run, column.measure, column.metric) for run in group.runs]
    defined = [value for value in values if not math.isnan(value)]
    if not defined:
        return None
    mean, spread = mean_std(defined)
    return Estimate(mean, spread=spread, seeds=len(defined))


def _compare(better: Group, worse: Group, column: PaperColumn, reader: MeasureReader) -> Order:
    """Return an order with the difference between the two methods and its test, without a correction."""
    measure, metric, both = column.measure or "", column.metric, pairs(better, worse)
    values = [[reader.value(run, measure, metric) for run in pair] for pair in both]
    differences = [ours - theirs for ours, theirs in values]
    defined = [difference for difference in differences if math.isfinite(difference)]
    over_images = _over_server_images(measure, metric, both, differences, reader)
    test = measure_test(measure, metric, both, differences, reader.sets_of, over_images)
    if not defined:
        return Order(better.label, worse.label, None, test)
    interval = test.over_runs.interval
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    estimate = Estimate(fmean(defined), low, high, seeds=len(defined), p=None if math.isnan(test.p) else test.p)
    return Order(better.label, worse.label, estimate, test)


def _over_server_images(
    measure: str,
    metric: str,
    both: Sequence[tuple[RunRecord, RunRecord]],
    differences: Sequence[float],
    reader: MeasureReader,
) -> PatientTest | None:
    """Test a difference over the server's test images; None unless the measure is of them and all runs predict them."""
    if measure not in SERVER_MEASURES or len(both) < 2 or not all(map(math.isfinite, differences)):
        return None
    views = [(server_run(ours), server_run(theirs)) for ours, theirs in both]
    known = [(ours, theirs) for ours, theirs in views if ours is not None and theirs is not None]
    has_own_models = measure == "shared_test" and any(run.scores.get("personal") for pair in both for run in pair)
    return method_test(known, metric, reader.sets_of) if len(known) == len(both) and not has_own_models else None


def _correlation(column: PaperColumn, ours: dict[str, Estimate | None]) -> float | None:
    """Return the rank correlation of the paper's numbers and ours; None without three different ones of each."""
    known = [(column.printed[name], value.value) for name, value in ours.items() if value and name in column.printed]
    theirs, measured = [pair[0] for pair in known], [pair[1] for pair in known]
    if len(known) < 3 or min(len({*theirs}), len({*measured})) < 2:
        return None
    return float(spearmanr(theirs, measured).statistic)


def _test_key(item: PaperItem, column: PaperColumn, order: Order) -> tuple[object, ...]:
    """Return the identity of a comparison: two columns of a paper may be compared with the same runs."""
    rows = frozenset({item.rows[order.better], item.rows[order.worse]})
    return column.data, column.measure, column.metric, rows


def _distinct_tests(item: PaperItem, columns: Sequence[ColumnResult]) -> dict[tuple[object, ...], float]:
    """Return the p-value of each comparison of the runs, by its identity."""
    return {
        _test_key(item, column.column, order): order.test.p
        for column in columns
        for order in column.orders
        if not math.isnan(order.test.p)
    }


def _correct(item: PaperItem, column: ColumnResult, corrected: dict[tuple[object, ...], float]) -> ColumnResult:
    """Return a column whose orders have their corrected p-values."""
    orders = [
        replace(order, p_holm=corrected.get(_test_key(item, column.column, order), math.nan)) for order in column.orders
    ]
    return replace(column, orders=tuple(orders))
