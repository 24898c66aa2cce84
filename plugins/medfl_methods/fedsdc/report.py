"""The section of a report about a pool of heads: who held which when, how they agree, what their votes are worth."""

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
from medfl.utils.formats import count, listed, number, score
from medfl_methods.fedsdc.report_data import COLOURS, badge, evenness, held_picture, times_held
from medfl_report.curves import group_looks
from medfl_report.figures import INK, Curve, Look, curves_figure, svg
from medfl_report.groups import Group, several
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.matrix import DEEPEST, LARGEST
from medfl_report.sections.standard import BANDS

RUNS = 4
"""Pools that are drawn on a page."""

TOLD = 60
"""Up to so many cells a picture is told in words, cell by cell."""

LEAST = 0.1
"""The least difference from the lower to the upper end of the axis of the vote, so that small ones look small."""

Found = Mapping[str, Findings]
"""Run folder, as text, to what the run found out."""

Shown = tuple[str, RunRecord, Findings]
"""A run with its name."""


class HeadsSection(TemplateSection):
    """Who held which head."""

    template = "heads.html"
    stylesheet = "heads.css"

    def content(self, data: ReportData) -> Meta | None:
        """The pools, where a run had one."""
        return {"heads": heads} if (heads := heads_section(data.groups, data.findings)) else None


def heads_section(groups: Sequence[Group], findings: Found) -> Meta | None:
    """The section; None where no run had a pool of heads.

    Of several runs that differ in seed or fold the first is drawn; those of other settings that dealt the same heads to
    the same sites, and found the same about them, are drawn once.

    Args:
        groups: Of the page.
        findings: What each run found out.
    """
    parts = [Group(group.label, kept) for group in groups if (kept := _pooled(group, findings))]
    if not parts:
        return None
    seeds = {run.seed for group in parts for run in group.runs}
    pools: dict[str, list[Shown]] = {}
    for group in parts:
        run = group.runs[0]
        run_findings, name = (
            findings[str(run.folder)],
            group.label if len(seeds) == 1 else f"{group.label}, seed {run.seed}",
        )
        pools.setdefault(_key(run_findings), []).append((name, run, run_findings))
    drawn = list(pools.values())
    return {
        "pools": [_pool(members) for members in drawn[:RUNS]],
        "colours": len(COLOURS),
        "left": listed([name for members in drawn[RUNS:] for name, _, _ in members]),
        **_votes(parts, findings),
    }


def _pooled(group: Group, findings: Found) -> tuple[RunRecord, ...]:
    return tuple(run for run in group.runs if "heads" in findings[str(run.folder)].meta)


def _key(run_findings: Findings) -> str:
    """Equal for runs of which one picture and one table tell all but which heads answer."""
    heads = {name: value for name, value in run_findings.meta["heads"].items() if name != "kept"}
    return json.dumps([heads, run_findings.tensors["held"].tolist()], sort_keys=True)


# ---- one pool


def _pool(members: Sequence[Shown]) -> Meta:
    """Who held which head when, and how the heads agree."""
    run_findings = members[0][2]
    heads, held = run_findings.meta["heads"], run_findings.tensors["held"].numpy()
    badges = [badge(head) for head in range(len(heads["widths"]))]
    times = times_held(held, len(badges))
    picture = held_picture(held, _told(held, heads["sites"])) if held.size else None
    return {
        "label": listed([name for name, _, _ in members]),
        "several": len(members) > 1,
        "sites": heads["sites"],
        "badges": badges,
        "picture": picture,
        "evenness": evenness(times),
        "thinned": _thinned(picture.every, len(held)) if picture else "",
        "times": dict(zip(heads["sites"], times.tolist(), strict=True)),
        "answers": [
            _answers(name if len(members) > 1 else "", run, run_findings) for name, run, run_findings in members
        ],
        "judged": _judged(heads) if "judged" in heads else None,
        "silent": "" if "judged" in heads else _silent(members[0][1], heads),
    }


def _told(held: np.ndarray, sites: Sequence[str]) -> str:
    """The picture in words."""
    start = f"Who held which head in {count(len(held), 'round')}"
    if held.size > TOLD:
        return f"{start}, {count(len(sites), 'site')}. The table of numbers says how often."
    rows = (
        f"{site}: {', '.join('none' if head < 0 else str(head + 1) for head in row)}"
        for site, row in zip(sites, held.T, strict=True)
    )
    return f"{start}. {'; '.join(rows)}."


def _thinned(every: int, rounds: int) -> str:
    if every == 1:
        return ""
    return f"Of the {number(rounds)} rounds number 1, {1 + every}, {1 + 2 * every} and so on are drawn."


def _answers(name: str, run: RunRecord, run_findings: Findings) -> str:
    """Which heads answer."""
    kept, heads = run_findings.meta["heads"]["kept"], len(run_findings.meta["heads"]["widths"])
    who = f"all {heads} heads answer" if len(kept) == heads else _named(kept)
    ensemble = run.run.provenance.settings.get("method_args.ensemble")
    is_mean = ensemble is not None and ensemble.value == "prob_mean" and len(kept) > 1
    mean = ", by their mean probability instead of a vote" if is_mean else ""
    text = f"{who}{mean}."
    return f"{name}: {text}" if name else text[0].upper() + text[1:]


def _named(kept: Sequence[int]) -> str:
    names = listed([str(head + 1) for head in kept])
    return f"only head {names} answers" if len(kept) == 1 else f"heads {names} answer"


def _silent(run: RunRecord, heads: Meta) -> str:
    """Why nobody compared the heads."""
    if not policy_of(run.settings).discloses_metadata("private"):
        why = "the counts that this takes stay at home under a privacy setting"
    elif run.status != "finished":
        why = "the run ended before"
    elif heads["judged_on"] == "validation":
        why = "no site has validation images; `medfl partition` keeps some with `--val-fraction 0.1`"
    else:
        why = "no site answered"
    return f"Nobody compared the heads: {why}."


def _judged(heads: Meta) -> Meta:
    """Width and accuracy of each head, and how often each two of them say the same."""
    judged = heads["judged"]
    images, size = judged["images"], len(heads["widths"])
    apart = [judged["agree"][first][other] / images for first in range(size) for other in range(first)] or [0.0]
    ranks = {head: place for place, head in enumerate(heads["ranking"], start=1)}
    return {
        "images": images,
        "what": heads["judged_on"],
        "pairs": size <= LARGEST,
        "ends": (min(apart), max(apart)),
        "rows": [
            {
                "badge": badge(head),
                "width": heads["widths"][head],
                "accuracy": judged["right"][head] / images,
                "rank": ranks[head],
                "cells": [
                    None if head == other else _cell(both / images, min(apart), max(apart))
                    for other, both in enumerate(judged["agree"][head])
                ],
            }
            for head in range(size)
        ],
    }


def _cell(share: float, low: float, high: float) -> Meta:
    return {"share": share, "shade": DEEPEST * (share - low) / (high - low) if high > low else 0.0}


# ---- the vote


def _votes(groups: Sequence[Group], findings: Found) -> Meta:
    """Accuracy of the vote of the best heads against their number, as mean over the runs of a group."""
    judged = {
        group.label: heads
        for group in groups
        if (
            heads := [
                heads_of_run
                for run in group.runs
                if "judged" in (heads_of_run := findings[str(run.folder)].meta["heads"])
            ]
        )
    }
    curves = [_curve(label, heads, len(judged) <= BANDS) for label, heads in judged.items()]
    curves = [curve for curve in curves if len(curve.rounds) > 1]
    if not curves:
        return {"votes": None}
    kept = {curve.name: fmean(len(run_heads["kept"]) for run_heads in judged[curve.name]) for curve in curves}
    drawn = [run_heads for curve in curves for run_heads in judged[curve.name]]
    return {
        "votes": _votes_picture(curves, kept, group_looks(groups)),
        "split": listed(sorted({run_heads["judged_on"] for run_heads in drawn})),
        "images": " or ".join(map(number, sorted({run_heads["judged"]["images"] for run_heads in drawn}))),
        "over": several([group for group in groups if group.label in kept]),
        "band": any(len(curve.low) for curve in curves),
    }


def _votes_picture(curves: Sequence[Curve], kept: Mapping[str, float], styles: Mapping[str, Look]) -> Markup:
    """The curves, each with a ring at the number of heads that answer."""
    figure = curves_figure(curves, styles, "accuracy of the vote", across="number of heads that vote, the best first")
    low, high = figure.axes[0].get_ylim()
    middle, half = (low + high) / 2, max(high - low, LEAST) / 2
    figure.axes[0].set_ylim(middle - half, middle + half)
    ring: Any = {"linestyle": "none", "marker": "o", "markersize": 10, "markerfacecolor": "none"}
    for curve in curves:
        at = float(np.interp(kept[curve.name], curve.rounds, curve.middle))
        figure.axes[0].plot(kept[curve.name], at, markeredgecolor=INK, markeredgewidth=1.2, **ring)
    values = "; ".join(
        f"{curve.name}: {', '.join(map(score, curve.middle))}, of which {kept[curve.name]:g} answer" for curve in curves
    )
    return svg(figure, "votes", f"Accuracy of the vote of the best head, the best two, and so on. {values}.")


def _curve(label: str, heads: Sequence[Meta], band: bool) -> Curve:
    rows = [[votes / run_heads["judged"]["images"] for votes in run_heads["judged"]["votes"]] for run_heads in heads]
    values = np.array([row[: min(map(len, rows))] for row in rows])
    edges = (values.min(axis=0), values.max(axis=0)) if band and len(rows) > 1 else ((), ())
    return Curve(label, range(1, values.shape[1] + 1), values.mean(axis=0).tolist(), *edges)
