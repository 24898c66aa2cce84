"""The section of a report about one setting with several values: how the scores go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from medfl.metrics import UNBOUNDED
from medfl.types import Meta
from medfl.utils.formats import metric_words, score
from medfl_report.figures import Curve, curves_figure, looks, svg
from medfl_report.groups import Group, output_names, several
from medfl_report.scores import ScoreRow, Value, key_metrics, score_table
from medfl_report.section import ReportData, TemplateSection

FEWEST = 3
"""With fewer values than this there is nothing to draw."""

CROWDED = 25.0
"""Where the whole axis has more than so many times the least distance of two values, they stand at even distances."""

ASIDE = ("seed", "threads", "workers", "device")
"""Settings that may differ besides."""


class SweepSection(TemplateSection):
    """One setting with several values."""

    template = "sweep.html"

    def content(self, data: ReportData) -> Meta | None:
        """A picture for each method with such a setting."""
        return {"sweep": sweep} if (sweep := sweep_section(data.groups)) else None


def sweep_section(groups: Sequence[Group]) -> list[Meta]:
    """What is drawn for each method whose groups differ in the value of one number only; empty without any."""
    methods = dict.fromkeys(group.method for group in groups)
    parts = {method: [group for group in groups if group.method == method] for method in methods}
    sweeps = [_sweep(method, some, f"sweep{place}") for place, (method, some) in enumerate(parts.items())]
    return [sweep for sweep in sweeps if sweep is not None]


def varied(groups: Sequence[Group]) -> tuple[str, list[float]] | None:
    """The one setting in which groups differ, with each group's value; None if that is no number, or not one setting.

    Args:
        groups: Of one method.
    """
    tables: list[dict[str, Any]] = [
        {name: origin.value for name, origin in group.runs[0].run.provenance.settings.items() if name not in ASIDE}
        for group in groups
    ]
    names = {name for table in tables for name in table if any(table.get(name) != other.get(name) for other in tables)}
    values = [table.get(name) for table in tables for name in names]
    if len(names) != 1 or any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return None
    numbers = [float(value) for value in values if value is not None]
    return (names.pop(), numbers) if len(set(numbers)) == len(numbers) >= FEWEST else None


def _sweep(method: str, groups: Sequence[Group], place: str) -> Meta | None:
    variation = varied(groups)
    metric = next(iter(key_metrics(groups)), "")
    if variation is None:
        return None
    name, values = variation
    rows = [_row(group, metric) for group in groups]
    scored = sorted((value, row) for value, row in zip(values, rows, strict=True) if row is not None)
    kinds = {"mean of sites": "mean", "worst site": "worst", "global test": "global_test"}
    curves = [_curve(kind, [(value, getattr(row, key)) for value, row in scored]) for kind, key in kinds.items()]
    curves = [curve for curve in curves if len(curve.rounds) > 1]
    if not curves:
        return None
    setting, label = name.removeprefix("method_args."), metric_words(metric, output_names(groups))
    return {
        "method": method,
        "setting": setting,
        "metric": label,
        "several": several(groups),
        "picture": _picture(curves, f"{method}: {setting}", label, metric not in UNBOUNDED, place),
    }


def _row(group: Group, metric: str) -> ScoreRow | None:
    """The scores of the model that sites take home."""
    rows = {row.model: row for row in score_table([group], "test").get(metric, [])}
    return rows.get("personal", rows.get("global"))


def _curve(name: str, points: Sequence[tuple[float, Value]]) -> Curve:
    """Mean over the runs with one standard deviation to both sides, where there are scores."""
    known = [(at, value.mean, value.spread or 0.0) for at, value in points if value.mean is not None]
    at, mean, spread = np.array(known).reshape(-1, 3).T
    return Curve(name, at.tolist(), mean.tolist(), (mean - spread).tolist(), (mean + spread).tolist())


def _picture(curves: Sequence[Curve], across: str, label: str, unit: bool, place: str) -> Markup:
    """The curves over the values that were tried."""
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
