"""Report section on FedSDC's pool of heads: assignment to sites, agreement, and accuracy of the heads' vote.

A head is a classifier on a shared body; the pool has one head for each site in a round. A group of runs contains the
runs that differ only in seed or fold. The findings of a run are metadata and tensors that the run's method recorded for
the report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup

from medfl.contract import Findings
from medfl.engine.runs.records import RunRecord
from medfl.privacy.policy import policy_of
from medfl.types import Meta
from medfl.utils.formats import count, join_words, number, score
from medfl_methods.fedsdc.heads_figures import (
    COLOURS,
    assignment_figure,
    count_rounds_with_head,
    describe_assignment,
    head_badge,
)
from medfl_report.curves import group_looks
from medfl_report.figures import INK, Curve, Look, curves_figure, svg
from medfl_report.groups import Group, repeated_word
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.cross_site import MAX_OPACITY, MAX_SITES
from medfl_report.sections.standard import MAX_BANDS

MAX_DRAWN_POOLS = 4
"""Maximum number of pools that are drawn on a page."""

MAX_LISTED_CELLS = 60
"""Maximum number of cells for which the assignment figure's description for screen readers lists every cell."""

MIN_AXIS_RANGE = 0.1
"""Minimum range of the accuracy axis in the figure of the vote, so that small differences look small."""

FindingsByRun = Mapping[str, Findings]
"""Mapping from the folder of each run, as text, to the findings of the run."""

NamedRun = tuple[str, RunRecord, Findings]
"""A run as a tuple: name in the report, record and findings."""


class HeadsSection(TemplateSection):
    """Report section on the heads of FedSDC runs."""

    template = "heads.html"
    """File name of the section's HTML template (Jinja), in the folder of this module."""
    stylesheet = "heads.css"
    """File name of the section's CSS file, in the folder of this module."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None leaves the section out, because no run has a pool of heads."""
        return {"heads": heads} if (heads := heads_section(data.groups, data.findings)) else None


def heads_section(groups: Sequence[Group], findings: FindingsByRun) -> Meta | None:
    """Return the variables of the section's template, or None if no run has a pool of heads.

    Of runs that differ only in seed or fold the first is drawn. Runs with other settings but the same assignment and
    the same evaluation of the heads are drawn once.

    Args:
        groups: Groups of runs on the page.
        findings: Mapping from the folder of each run, as text, to the findings of the run.
    """
    parts = [
        Group(group.label, ensemble_heads) for group in groups if (ensemble_heads := _runs_with_heads(group, findings))
    ]
    if not parts:
        return None
    seeds = {run.seed for group in parts for run in group.runs}
    pools: dict[str, list[NamedRun]] = {}
    for group in parts:
        run = group.runs[0]
        run_findings, name = (
            findings[str(run.folder)],
            group.label if len(seeds) == 1 else f"{group.label}, seed {run.seed}",
        )
        pools.setdefault(_assignment_key(run_findings), []).append((name, run, run_findings))
    drawn = list(pools.values())
    return {
        "pools": [_pool_content(members) for members in drawn[:MAX_DRAWN_POOLS]],
        "colours": len(COLOURS),
        "not_drawn": join_words([name for members in drawn[MAX_DRAWN_POOLS:] for name, _, _ in members]),
        **_vote_curves(parts, findings),
    }


def _runs_with_heads(group: Group, findings: FindingsByRun) -> tuple[RunRecord, ...]:
    """Return the runs of a group that have a pool of heads."""
    return tuple(run for run in group.runs if "heads" in findings[str(run.folder)].meta)


def _assignment_key(run_findings: Findings) -> str:
    """Return a key that is equal for runs that differ at most in the heads of the ensemble."""
    heads = {name: value for name, value in run_findings.meta["heads"].items() if name != "ensemble_heads"}
    return json.dumps([heads, run_findings.tensors["held"].tolist()], sort_keys=True)


# ---- one pool


def _pool_content(members: Sequence[NamedRun]) -> Meta:
    """Return the content of one pool: assignment, agreement and ensemble of the heads."""
    run_findings = members[0][2]
    heads, assigned = run_findings.meta["heads"], run_findings.tensors["held"].numpy()
    badges = [head_badge(head) for head in range(len(heads["widths"]))]
    times = count_rounds_with_head(assigned, len(badges))
    figure = assignment_figure(assigned, _figure_description(assigned, heads["sites"])) if assigned.size else None
    return {
        "label": join_words([name for name, _, _ in members]),
        "has_several_runs": len(members) > 1,
        "sites": heads["sites"],
        "badges": badges,
        "figure": figure,
        "assignment": describe_assignment(times),
        "drawn_rounds": _drawn_rounds(figure.every, len(assigned)) if figure else "",
        "times": dict(zip(heads["sites"], times.tolist(), strict=True)),
        "ensembles": [
            _describe_ensemble(name if len(members) > 1 else "", run, run_findings)
            for name, run, run_findings in members
        ],
        "evaluation": _head_rows(heads) if "evaluation" in heads else None,
        "not_evaluated": "" if "evaluation" in heads else _reason_not_evaluated(members[0][1], heads),
    }


def _figure_description(assigned: np.ndarray, sites: Sequence[str]) -> str:
    """Return the description of the assignment figure."""
    start = f"Heads assigned to the sites in {count(len(assigned), 'round')}"
    if assigned.size > MAX_LISTED_CELLS:
        return f"{start}, {count(len(sites), 'site')}. The table of counts has the numbers of rounds."
    rows = (
        f"{site}: {', '.join('none' if head < 0 else str(head + 1) for head in row)}"
        for site, row in zip(sites, assigned.T, strict=True)
    )
    return f"{start}. {'; '.join(rows)}."


def _drawn_rounds(every: int, rounds: int) -> str:
    """Return a sentence on the drawn rounds if not all are drawn."""
    if every == 1:
        return ""
    return f"Of the {number(rounds)} rounds, rounds 1, {1 + every}, {1 + 2 * every} and so on are shown."


def _describe_ensemble(name: str, run: RunRecord, run_findings: Findings) -> str:
    """Return a sentence on the heads of the ensemble."""
    ensemble_heads, heads = run_findings.meta["heads"]["ensemble_heads"], len(run_findings.meta["heads"]["widths"])
    who = f"the ensemble has all {heads} heads" if len(ensemble_heads) == heads else _list_heads(ensemble_heads)
    ensemble = run.run.provenance.settings.get("method_args.ensemble")
    is_mean = ensemble is not None and ensemble.value == "prob_mean" and len(ensemble_heads) > 1
    mean = ", which average their probabilities instead of voting" if is_mean else ""
    text = f"{who}{mean}."
    return f"{name}: {text}" if name else text[0].upper() + text[1:]


def _list_heads(ensemble_heads: Sequence[int]) -> str:
    """Return a clause that lists the heads of the ensemble."""
    names = join_words([str(head + 1) for head in ensemble_heads])
    return f"the ensemble has only head {names}" if len(ensemble_heads) == 1 else f"the ensemble has heads {names}"


def _reason_not_evaluated(run: RunRecord, heads: Meta) -> str:
    """Return a sentence with the reason why the heads were not evaluated."""
    if not policy_of(run.settings).discloses_metadata("private"):
        why = "under a privacy setting sites do not send the counts"
    elif run.status != "finished":
        why = "the run ended before the evaluation"
    elif heads["evaluated_on"] == "validation":
        why = "no site has validation images (`medfl partition` creates them with `--val-fraction 0.1`)"
    else:
        why = "no site replied"
    return f"The heads were not evaluated: {why}."


def _head_rows(heads: Meta) -> Meta:
    """Return width and accuracy of each head, and the agreement of each two heads."""
    evaluation = heads["evaluation"]
    images, size = evaluation["images"], len(heads["widths"])
    apart = [evaluation["agree"][first][other] / images for first in range(size) for other in range(first)] or [0.0]
    ranks = {head: place for place, head in enumerate(heads["ranking"], start=1)}
    return {
        "images": images,
        "split": heads["evaluated_on"],
        "shows_pairs": size <= MAX_SITES,
        "range": (min(apart), max(apart)),
        "rows": [
            {
                "badge": head_badge(head),
                "width": heads["widths"][head],
                "accuracy": evaluation["right"][head] / images,
                "rank": ranks[head],
                "cells": [
                    None if head == other else _agreement_cell(both / images, min(apart), max(apart))
                    for other, both in enumerate(evaluation["agree"][head])
                ],
            }
            for head in range(size)
        ],
    }


def _agreement_cell(share: float, low: float, high: float) -> Meta:
    """Return the agreement of two heads and its shade."""
    return {"share": share, "shade": MAX_OPACITY * (share - low) / (high - low) if high > low else 0.0}


# ---- the vote


def _vote_curves(groups: Sequence[Group], findings: FindingsByRun) -> Meta:
    """Return the accuracy of the vote over the number of best heads, as a mean curve over the runs of a group."""
    evaluation = {
        group.label: heads
        for group in groups
        if (
            heads := [
                heads_of_run
                for run in group.runs
                if "evaluation" in (heads_of_run := findings[str(run.folder)].meta["heads"])
            ]
        )
    }
    curves = [_group_curve(label, heads, len(evaluation) <= MAX_BANDS) for label, heads in evaluation.items()]
    curves = [curve for curve in curves if len(curve.rounds) > 1]
    if not curves:
        return {"votes": None}
    ensemble_heads = {
        curve.name: fmean(len(run_heads["ensemble_heads"]) for run_heads in evaluation[curve.name]) for curve in curves
    }
    drawn = [run_heads for curve in curves for run_heads in evaluation[curve.name]]
    return {
        "votes": _vote_figure(curves, ensemble_heads, group_looks(groups)),
        "split": join_words(sorted({run_heads["evaluated_on"] for run_heads in drawn})),
        "images": " or ".join(map(number, sorted({run_heads["evaluation"]["images"] for run_heads in drawn}))),
        "averaged_over": repeated_word([group for group in groups if group.label in ensemble_heads]),
        "has_band": any(len(curve.low) for curve in curves),
    }


def _vote_figure(curves: Sequence[Curve], ensemble_heads: Mapping[str, float], styles: Mapping[str, Look]) -> Markup:
    """Return the curves as SVG, each with a ring at the size of the ensemble."""
    figure = curves_figure(curves, styles, "accuracy of the vote", across="number of voting heads, best first")
    low, high = figure.axes[0].get_ylim()
    middle, half = (low + high) / 2, max(high - low, MIN_AXIS_RANGE) / 2
    figure.axes[0].set_ylim(middle - half, middle + half)
    ring: Any = {"linestyle": "none", "marker": "o", "markersize": 10, "markerfacecolor": "none"}
    for curve in curves:
        at = float(np.interp(ensemble_heads[curve.name], curve.rounds, curve.middle))
        figure.axes[0].plot(ensemble_heads[curve.name], at, markeredgecolor=INK, markeredgewidth=1.2, **ring)
    values = "; ".join(
        f"{curve.name}: {', '.join(map(score, curve.middle))}, ensemble of {ensemble_heads[curve.name]:g}"
        for curve in curves
    )
    return svg(figure, "votes", f"Accuracy of the best head, of the vote of the best two, and so on. {values}.")


def _group_curve(label: str, heads: Sequence[Meta], band: bool) -> Curve:
    """Return the curve of a group, with a band from the lowest to the highest run."""
    rows = [
        [votes / run_heads["evaluation"]["images"] for votes in run_heads["evaluation"]["votes"]] for run_heads in heads
    ]
    values = np.array([row[: min(map(len, rows))] for row in rows])
    edges = (values.min(axis=0), values.max(axis=0)) if band and len(rows) > 1 else ((), ())
    return Curve(label, range(1, values.shape[1] + 1), values.mean(axis=0).tolist(), *edges)
