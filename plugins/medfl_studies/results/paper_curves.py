"""Curves of a study's runs for the figures of a paper, as tables with the values at a few rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.types import NON_SITE_NAMES, PUBLIC
from medfl.utils.formats import join_words
from medfl_report.curves import epoch_curve, global_curve, score_curve, trained_curve, work_curve
from medfl_report.figures import Curve
from medfl_report.groups import Group
from medfl_report.trajectory import read_trajectory
from medfl_studies.records.paper_items import PaperCurve
from medfl_studies.results.paper_orders import ItemResult, method_groups

POINTS = 6
"""Largest number of points of a curve in a table."""

TIME_SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Points of a curve by time, as shares of the time of the shortest curve."""


@dataclass(frozen=True)
class CurvePoints:
    """Values of several curves at the same points.

    Attributes:
        unit: Quantity of the points, such as ``round``.
        points: The points, increasing.
        values: Maps each curve's name to its values at the points; None where the curve has no value yet.
    """

    unit: str
    points: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]


def curve_points(result: ItemResult, curve: PaperCurve) -> CurvePoints | None:
    """Return the values of a figure's curves at a few points.

    Args:
        result: The figure and its runs.
        curve: The figure's quantity.

    Returns:
        Means over the runs. The points are at most `POINTS` rounds or epochs that all curves have, evenly spaced with
        the first and the last, or `TIME_SHARES` of the time. None without a curve of two rounds.
    """
    groups = method_groups(result.item, result.results, curve.data)
    chosen = [group for method, group in groups.items() if not curve.methods or method in curve.methods]
    curves = [drawn for group in chosen for drawn in _curves(group, curve)]
    if not curves:
        return None
    if curve.kind == "seconds":
        return _at_times(curves)
    return _at_rounds(curves, "epoch" if curve.kind == "epochs" else "round")


def time_note(result: ItemResult, curve: PaperCurve) -> str:
    """Return sentences that compare the last curve by time with the first one; empty without two of them.

    They state whether our curves reach the time at which the paper states a gain. Nothing is tested.
    """
    groups = method_groups(result.item, result.results, curve.data)
    curves = [drawn for group in groups.values() for drawn in _curves(group, curve)]
    points = curve_points(result, curve)
    if curve.claimed_at is None or points is None or len(curves) < 2:
        return ""
    first, last = curves[0].name, curves[-1].name
    pairs = zip(points.values[first], points.values[last], strict=True)
    known = [(ours, theirs) for theirs, ours in pairs if ours is not None and theirs is not None]
    higher = sum(ours > theirs for ours, theirs in known)
    ends = join_words([f"{drawn.name}'s curve ends after {float(drawn.rounds[-1]):,.0f} seconds" for drawn in curves])
    missing = [drawn.name for drawn in curves if float(drawn.rounds[-1]) < curve.claimed_at]
    reached = f"the claim at {curve.claimed_at:,} seconds can't be compared, because {ends}" if missing else ends
    return (
        f"{last} is higher than {first} at {higher} of the {len(known)} times, and its difference is "
        f"{known[-1][0] - known[-1][1]:+.3f} at the last one. The paper's time is not that of our machine; "
        f"{reached}. Nothing was tested."
    )


def _curves(group: Group, curve: PaperCurve) -> list[Curve]:
    """Return the curves of a method: one for each network of its sites if the figure separates them, else one."""
    if curve.kind == "networks":
        return _network_curves(group, curve.metric)
    drawn: Curve | None
    match curve.kind:
        case "trained":
            drawn = trained_curve(group.label, [read_trajectory(run, curve.metric) for run in group.runs])
        case "seconds":
            drawn = work_curve(group.label, [read_trajectory(run, curve.metric) for run in group.runs])
        case "sites":
            drawn = score_curve(group, curve.metric, band=False)
        case "server":
            drawn = global_curve(group, curve.metric)
        case "public":
            drawn = global_curve(group, curve.metric, PUBLIC)
        case "epochs":
            drawn = epoch_curve(group, curve.metric, PUBLIC)
    return [] if drawn is None else [drawn]


def _network_curves(group: Group, metric: str) -> list[Curve]:
    """Return the mean score of the sites with each network by round, over sites and runs, on their own test images."""
    tables = [_own_scores(run, metric) for run in group.runs]
    rows = pd.concat(tables)
    curves = []
    for network, part in rows.groupby("network"):
        means = part.groupby("round")["value"].mean()
        if len(means) > 1:
            curves.append(Curve(f"{group.label}, {network}", means.index.tolist(), means.tolist()))
    return curves


def _own_scores(run: RunRecord, metric: str) -> pd.DataFrame:
    """Return the scores of the exported models on the sites' own test sets, with the network of each site."""
    table = run.metrics
    rows = table[(table["moment"] == "aggregated") & (table["split"] == "test") & (table["metric"] == metric)]
    rows = rows[~rows["site"].isin(NON_SITE_NAMES) & ~rows["model"].str.contains("@") & rows["value"].notna()]
    kind = "personal" if (rows["model"] == "personal").any() else "global"
    assigned = {site: entry.network for site, entry in run.run.provenance.assigned_networks.items()}
    networks = assigned | run.settings.networks_by_site
    rows = rows[rows["model"] == kind]
    return rows.assign(network=[networks.get(site, "one network") for site in rows["site"]])


def _at_rounds(curves: Sequence[Curve], unit: str) -> CurvePoints | None:
    """Return the values at rounds that all curves have; None without such a round."""
    common = sorted(set.intersection(*({int(number) for number in curve.rounds} for curve in curves)))
    if not common:
        return None
    count = min(POINTS, len(common))
    points = [common[round(place * (len(common) - 1) / max(count - 1, 1))] for place in range(count)]
    values: dict[str, tuple[float | None, ...]] = {}
    for curve in curves:
        known = dict(zip(map(int, curve.rounds), map(float, curve.middle), strict=True))
        values[curve.name] = tuple(known[point] for point in points)
    return CurvePoints(unit, tuple(points), values)


def _at_times(curves: Sequence[Curve]) -> CurvePoints:
    """Return the last value before each of a few times, in whole seconds."""
    shortest = min(float(curve.rounds[-1]) for curve in curves)
    points = tuple(dict.fromkeys(int(shortest * share) for share in TIME_SHARES))
    values = {}
    for curve in curves:
        known = list(zip(map(float, curve.rounds), map(float, curve.middle), strict=True))
        before = [[value for when, value in known if when <= point] for point in points]
        values[curve.name] = tuple(part[-1] if part else None for part in before)
    return CurvePoints("second", points, values)
