"""Section on the sensitivity of the scores to one setting with several values.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from medfl.metrics import UNBOUNDED_METRICS
from medfl.types import Meta
from medfl.utils.formats import metric_words, score
from medfl_report.figures import Curve, curves_figure, looks, svg
from medfl_report.groups import Group, output_names, repeated_word
from medfl_report.scores import MeanAndSpread, ScoreRow, page_metrics, score_table
from medfl_report.section import ReportData, TemplateSection

MIN_VALUES = 3
"""Minimum number of values of the setting for a figure."""

CROWDED = 25.0
"""Ratio of the axis to the smallest distance of two values above which the values are drawn equidistantly."""

IGNORED = ("seed", "threads", "workers", "device", "devices")
"""Settings in which the runs of a sweep may differ in addition to the varied setting."""


class SweepSection(TemplateSection):
    """Section of a report: scores by the value of one setting."""

    template = "sweep.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None without any.

        They contain a figure for each method whose runs differ in one numeric setting.
        """
        return {"sweep": sweep} if (sweep := sweep_section(data.groups)) else None


def sweep_section(groups: Sequence[Group]) -> list[Meta]:
    """Return template variables with a figure for each method whose groups differ in one numeric setting only."""
    methods = dict.fromkeys(group.method for group in groups)
    parts = {method: [group for group in groups if group.method == method] for method in methods}
    sweeps = [_sweep(method, some, f"sweep{place}") for place, (method, some) in enumerate(parts.items())]
    return [sweep for sweep in sweeps if sweep is not None]


def varied(groups: Sequence[Group]) -> tuple[str, list[float]] | None:
    """Return the only setting in which groups differ, and its values; None if it is not numeric or not the only one.

    Args:
        groups: Groups of one method.
    """
    tables: list[dict[str, Any]] = [
        {name: origin.value for name, origin in group.runs[0].run.provenance.settings.items() if name not in IGNORED}
        for group in groups
    ]
    names = {name for table in tables for name in table if any(table.get(name) != other.get(name) for other in tables)}
    values = [table.get(name) for table in tables for name in names]
    if len(names) != 1 or any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return None
    numbers = [float(value) for value in values if value is not None]
    return (names.pop(), numbers) if len(set(numbers)) == len(numbers) >= MIN_VALUES else None


def _sweep(method: str, groups: Sequence[Group], place: str) -> Meta | None:
    """Return the figure of a method with its captions; None without a varied setting or scores."""
    variation = varied(groups)
    metric = next(iter(page_metrics(groups)), "")
    if variation is None:
        return None
    name, values = variation
    rows = [_row(group, metric) for group in groups]
    scored = sorted((value, row) for value, row in zip(values, rows, strict=True) if row is not None)
    kinds = {"mean of sites": "mean", "worst site": "worst", "server test": "server_test"}
    curves = [_curve(kind, [(value, getattr(row, key)) for value, row in scored]) for kind, key in kinds.items()]
    curves = [curve for curve in curves if len(curve.rounds) > 1]
    if not curves:
        return None
    setting, label = name.removeprefix("method_args."), metric_words(metric, output_names(groups))
    return {
        "method": method,
        "setting": setting,
        "metric": label,
        "several": repeated_word(groups),
        "picture": _picture(curves, f"{method}: {setting}", label, metric not in UNBOUNDED_METRICS, place),
    }


def _row(group: Group, metric: str) -> ScoreRow | None:
    """Return the scores of a group's exported models; None without scores."""
    rows = {row.model: row for row in score_table([group], "test").get(metric, [])}
    return rows.get("personal", rows.get("global"))


def _curve(name: str, points: Sequence[tuple[float, MeanAndSpread]]) -> Curve:
    """Return the curve of means over the runs, with a band of one standard deviation to both sides."""
    defined = [(at, value.mean, value.spread or 0.0) for at, value in points if value.mean is not None]
    at, mean, spread = np.array(defined).reshape(-1, 3).T
    return Curve(name, at.tolist(), mean.tolist(), (mean - spread).tolist(), (mean + spread).tolist())


def _picture(curves: Sequence[Curve], across: str, label: str, unit: bool, place: str) -> Markup:
    """Return the figure of the curves by the values of the setting."""
    values = sorted({value for curve in curves for value in curve.rounds})
    crowded = values[-1] - values[0] > CROWDED * min(np.diff(values))
    places = {value: place if crowded else value for place, value in enumerate(values)}
    drawn = [replace(curve, rounds=[places[value] for value in curve.rounds]) for curve in curves]
    axis = f"{across} (not to scale)" if crowded else across
    figure = curves_figure(drawn, looks([curve.name for curve in curves]), label, unit, axis)
    figure.axes[0].set_xticks(list(places.values()), [f"{value:g}" for value in values])
    points = "; ".join(
        f"{curve.name}: {', '.join(f'{score(y)} at {x:g}' for x, y in zip(curve.rounds, curve.middle, strict=True))}"
        for curve in curves
    )
    return svg(figure, place, f"{label} against {across}. {points}.")
