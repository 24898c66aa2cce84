"""Tables of the page about papers. A template calls them by name; each returns Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from medfl.utils.formats import MISSING, count, join_words
from medfl_report.claims import CLAIMABLE
from medfl_report.forgetting import MEASURES
from medfl_report.groups import folds_among
from medfl_studies.records.paper_items import PaperCurve, PaperItem
from medfl_studies.results.page_formats import cell, count_word, mean_cell, table
from medfl_studies.results.page_statistics import Estimate
from medfl_studies.results.paper_curves import curve_points
from medfl_studies.results.paper_orders import ColumnResult, ItemResult, Order, Verdict

NOT_RUN_YET = "not run yet"
"""State of an item whose study has no raw results yet."""

NOT_RUN = "not run"
"""State of an item that no study with raw results repeats."""

DECIDED: tuple[Verdict, Verdict] = ("holds", "reversed")
"""Verdicts of significant differences."""

OPEN_SEPARATOR = "; "
"""Separator of the open orders in a sentence."""


def paper_state(result: ItemResult) -> str:
    """Return the state of an item: its finished and otherwise ended runs, or that there are none."""
    if not result.runs:
        return NOT_RUN if result.item.raw is None else NOT_RUN_YET
    statuses = Counter(run.status for run in result.runs)
    finished = statuses.pop("finished", 0)
    others = "".join(f", {number} {status}" for status, number in sorted(statuses.items()))
    return f"{finished} of {len(result.runs) + result.unfinished} runs finished{others}"


def papers_overview(results: Sequence[ItemResult]) -> str:
    """Return a table with a line for each table and figure: its study, scale, runs, and the orders that hold."""
    head = ["paper", "item", "study", "runs", "scale", "orders", "hold", "reversed", "hold (seeds only)"]
    head += ["reversed (seeds only)", "open", "not tested", "same sign", "rank correlation"]
    lines = []
    for result in results:
        seeds_only = [result.count_seeds_only(verdict) for verdict in DECIDED]
        decided = [result.count(verdict) - number for verdict, number in zip(DECIDED, seeds_only, strict=True)]
        counts = [*decided, *seeds_only, result.count("open") - result.untested, result.untested, result.same_sign]
        orders = len(result.orders)
        lines.append(
            [
                result.paper.name,
                result.item.item,
                study_names(result.item),
                paper_state(result),
                run_scale(result),
                str(orders) if orders else "",
                *(str(number) if orders else "" for number in counts),
                rank_range(result),
            ]
        )
    return table(head, lines)


def orders_summary(result: ItemResult) -> str:
    """Return sentences with the numbers of an item's orders by verdict, and the rank correlations."""
    total, untested = len(result.orders), result.untested
    if untested == total:
        sentences = [f"None of the {total} orders was tested ({_why_untested(result)})."]
    else:
        parts = [_verdict_count(result, verdict) for verdict in DECIDED]
        parts.append(_verb(result.count("open") - untested, "open"))
        parts += (
            [f"{untested} {'was' if untested == 1 else 'were'} not tested ({_why_untested(result)})"]
            if untested
            else []
        )
        uncorrected = join_words([_verdict_count(result, verdict, False) for verdict in DECIDED])
        sentences = [
            f"Of {total} orders, {join_words(parts)}, after a correction for {count(result.tests, 'comparison')}.",
            f"Without a correction, {uncorrected}.",
        ]
    same = result.same_sign
    sentences.append(f"{count(same, 'difference')} {'has' if same == 1 else 'have'} the paper's sign.")
    known = correlations(result)
    return " ".join([*sentences, *([f"Rank correlation: {known}."] if known else [])])


def paper_summary(results: Sequence[ItemResult], name: str) -> str:
    """Return a sentence if no order of a paper was tested; empty otherwise, and for a paper without orders."""
    mine = [result for result in results if result.paper.name == name]
    total = sum(len(result.orders) for result in mine)
    if not total or sum(result.untested for result in mine) < total:
        return ""
    seeds = max(len({run.seed for run in result.runs}) for result in mine if result.orders)
    runs = f"the runs have {count_word(seeds)} {'seed' if seeds == 1 else 'seeds'}"
    return f"None of this paper's {total} orders was tested: {runs}, and a test needs three."


def study_names(item: PaperItem) -> str:
    """Return the names of the study files of an item; the missing sign without any."""
    return ", ".join(f"`{name}`" for name in item.studies) or MISSING


def run_scale(result: ItemResult) -> str:
    """Return rounds, sites, seeds and precision of an item's runs; empty without runs."""
    runs = result.runs
    if not runs:
        return ""
    words = [
        f"{_span(run.settings.rounds for run in runs)} rounds",
        f"{_span(len(run.sites) for run in runs)} sites",
        f"{len({run.seed for run in runs})} seeds".replace("1 seeds", "1 seed"),
    ]
    folds = folds_among(runs)
    words += [f"{folds} folds"] if folds is not None else []
    return ", ".join([*words, *sorted({run.settings.precision for run in runs})])


def rank_range(result: ItemResult) -> str:
    """Return the rank correlations of an item's columns: all of up to two, otherwise the smallest and the largest."""
    known = [column.correlation for column in result.columns if column.correlation is not None]
    if len(known) > 2:
        return f"{cell(min(known), '+', 2)} to {cell(max(known), '+', 2)}"
    return ", ".join(cell(value, "+", 2) for value in known)


def paper_table(result: ItemResult) -> str:
    """Return the table of an item with the numbers of the paper beside ours; empty without any number.

    A column without runs has the numbers of the paper only, and a column without printed numbers ours only. Ours are
    means over the runs with their standard deviation, in the unit of the paper.
    """
    known = {name for column in result.columns for name in (*column.column.printed, *column.ours)}
    head, cells = ["method"], {method: [method] for method in result.item.methods if method in known}
    for column in result.columns:
        if column.column.printed:
            head.append(f"{column.column.name}: paper")
            for method, line in cells.items():
                line.append(cell(column.column.printed.get(method), digits=result.item.decimals))
        if column.ours:
            where = f" ({result.item.our_data})" if result.item.our_data else ""
            head.append(f"{column.column.ours or column.column.name}: medfl{where}")
            for method, line in cells.items():
                line.append(_measured(result.item, column, method))
    return table(head, list(cells.values())) if len(head) > 1 else ""


def orders_table(result: ItemResult) -> str:
    """Return a table with the orders of an item that hold or are reversed; empty without any."""
    lines = [
        [
            f"{order.better} > {order.worse}",
            column.column.label,
            _difference(result.item, order.difference),
            f"{order.p_holm:.4f}",
            order.result,
            "patients and seeds" if order.test.over_patients.p is not None else "seeds",
        ]
        for column in result.columns
        for order in column.orders
        if order.verdict != "open"
    ]
    head = ["order of the paper", "column", "difference", "p, corrected", "result", "tested over"]
    return table(head, lines) if lines else ""


def open_orders(result: ItemResult) -> str:
    """Return a list with the open orders of each column of an item and their differences; empty without any.

    Orders that were not tested are counted only, because their differences follow from the table.
    """
    if result.untested == len(result.orders):
        return ""
    lines = []
    for column in result.columns:
        opened = [order for order in column.orders if order.verdict == "open"]
        tested = [order for order in opened if not math.isnan(order.test.p)]
        texts = [_open_order(result.item, order) for order in tested]
        if len(opened) > len(tested):
            texts.append(f"{len(opened) - len(tested)} orders were not tested" if texts else "no order was tested")
        if texts:
            lines.append(f"- {column.column.label}: {OPEN_SEPARATOR.join(texts)}.")
    return "\n".join(lines)


def columns_without_runs(result: ItemResult) -> str:
    """Return the names of the columns that no run repeats, in an item with runs of other columns; empty without any."""
    without = [column.column.label for column in result.columns if not column.ours]
    return "; ".join(without) if len(without) < len(result.columns) else ""


def correlations(result: ItemResult) -> str:
    """Return the rank correlation of each column in words; empty without any."""
    known = [column for column in result.columns if column.correlation is not None]
    return "; ".join(f"{column.column.label}: {cell(column.correlation, '+', 2)}" for column in known)


def measure_notes(result: ItemResult) -> list[str]:
    """Return the definition of each measure of an item with the columns that show it; empty without runs."""
    columns_by_measure: dict[str, list[str]] = {}
    for column in [result_column.column for result_column in result.columns if result_column.ours]:
        columns_by_measure.setdefault(column.measure or "", []).append(
            f"{column.ours or column.name} ({column.metric})"
        )
    return [
        f"`{name}`: {MEASURES.get(name) or CLAIMABLE[name].meaning}. Columns: {'; '.join(names)}."
        for name, names in columns_by_measure.items()
    ]


def curve_table(result: ItemResult, curve: PaperCurve) -> str:
    """Return the values of a figure's curves at a few rounds, epochs or seconds; empty without curves."""
    points = curve_points(result, curve)
    if points is None:
        return ""
    head = [curve.name, *(f"{points.unit} {point:,}" for point in points.points)]
    return table(head, [[name, *map(cell, values)] for name, values in points.values.items()])


def _span(values: Iterable[int]) -> str:
    """Return the only value of several, or the smallest and the largest."""
    known = sorted(set(values))
    return f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}"


def _measured(item: PaperItem, column: ColumnResult, method: str) -> str:
    """Format a measure with its standard deviation over the runs in the unit of the paper.

    The cell says how many runs there are if another method of the column has more.
    """
    value = column.ours.get(method)
    most = max((other.seeds for other in column.ours.values() if other is not None), default=0)
    text = mean_cell(_in_unit(item, value), item.decimals)
    return text if value is None or value.seeds == most else f"{text} ({count(value.seeds, 'run')})"


def _difference(item: PaperItem, value: Estimate | None) -> str:
    """Format a difference with its interval in the unit of the paper."""
    return cell(_in_unit(item, value), "+", item.decimals)


def _in_unit(item: PaperItem, value: Estimate | None) -> Estimate | None:
    """Return an estimate in the unit of the paper: in percent, or unchanged."""
    if value is None or not item.percent:
        return value
    low, high, spread = (None if part is None else 100 * part for part in (value.low, value.high, value.spread))
    return replace(value, value=100 * value.value, low=low, high=high, spread=spread)


def _open_order(item: PaperItem, order: Order) -> str:
    """Format an open order with its difference."""
    return f"{order.better} > {order.worse} ({_difference(item, order.difference)})"


def _verdict_count(result: ItemResult, verdict: Verdict, corrected: bool = True) -> str:
    """Return the number of orders with a verdict, and how many of them have it by a test over the seeds alone."""
    number, seeds_only = result.count(verdict, corrected), result.count_seeds_only(verdict, corrected)
    text = _verb(number, verdict)
    return text if not seeds_only else f"{text} ({'' if seeds_only == number else f'{seeds_only} '}seeds only)"


def _verb(number: int, verdict: Verdict) -> str:
    """Return a number of orders and what they do: ``none holds``, ``1 holds`` or ``2 hold``."""
    singular, plural = {
        "holds": ("holds", "hold"),
        "reversed": ("is reversed", "are reversed"),
        "open": ("is open", "are open"),
    }[verdict]
    return f"{number or 'none'} {singular if number < 2 else plural}"


def _why_untested(result: ItemResult) -> str:
    """Return the reasons why orders have no test."""
    untested = [order.test for order in result.orders if math.isnan(order.test.p)]
    reasons = ["too few runs" if test.too_few_runs else test.effect(("", ""), math.nan) for test in untested]
    return join_words(sorted({"the measure is not defined" if reason == "-" else reason for reason in reasons}))
