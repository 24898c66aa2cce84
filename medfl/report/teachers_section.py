"""The section of a report about the teachers of a student: what each is worth, and how the student scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from medfl.contract import Meta
from medfl.report.curves import group_looks
from medfl.report.figures import gains_figure, svg
from medfl.report.formats import listed, signed
from medfl.report.groups import Group, several
from medfl.report.runs import RunRecord
from medfl.report.scores import value_over
from medfl.report.selection import key_metrics

WAYS = {
    "shapley": "weighed by their Shapley values, those below 0 by nothing",
    "equal": "weighed equally",
    "literal": "weighed equally, with the loss multiplied by the mean absolute SHAP value of a pixel",
}
"""How teachers were weighed, in words."""

Findings = Mapping[str, Meta]
"""Run folder, as text, to the meta of its findings."""


def teachers_section(groups: Sequence[Group], findings: Findings) -> Meta | None:
    """The section; None where no run had a student with teachers.

    Args:
        groups: Of the page.
        findings: What each run found out (`medfl.findings`).
    """
    parts = [Group(group.label, kept) for group in groups if (kept := _taught(group, findings))]
    if not parts:
        return None
    return {
        "groups": [_group(group, findings) for group in parts],
        "picture": _picture(parts, findings),
        "several": several(parts),
        "scores": [row for metric in key_metrics(parts) for row in _scores(parts, metric)],
    }


def _taught(group: Group, findings: Findings) -> tuple[RunRecord, ...]:
    return tuple(run for run in group.runs if findings[str(run.folder)].get("teachers"))


def _group(group: Group, findings: Findings) -> Meta:
    """Values, weights and worth of a group of runs, as means over the runs."""
    found = [findings[str(run.folder)] for run in group.runs]
    names = sorted({name for one in found for name in one["teachers"]})
    coalitions = sorted({who for one in found for who in one["groups"]}, key=lambda who: (_members(who), who))
    images = sorted({int(one["weighed_on"]) for one in found})
    return {
        "label": group.label,
        "images": " or ".join(map(str, images)),
        "how": listed(sorted({WAYS.get(one["how"], one["how"]) for one in found})),
        "teachers": [
            {
                "name": name,
                "alone": value_over([one["groups"].get(name) for one in found]),
                "value": value_over([_fact(one, name, "value") for one in found]),
                "weight": value_over([_fact(one, name, "weight") for one in found]),
            }
            for name in names
        ],
        "worth": [
            {"who": _named(who), "value": value_over([one["groups"].get(who) for one in found])} for who in coalitions
        ],
    }


def _members(who: str) -> int:
    return len(who.split("+")) if who else 0


def _named(who: str) -> str:
    return listed(who.split("+")) if who else "nobody, which is guessing"


def _fact(found: Meta, teacher: str, key: str) -> float | None:
    value = found["teachers"].get(teacher, {}).get(key)
    return None if value is None else float(value)


def _picture(groups: Sequence[Group], findings: Findings) -> Markup:
    """What each teacher adds, in each group."""
    points = {
        group.label: {
            teacher["name"]: teacher["value"].mean
            for teacher in _group(group, findings)["teachers"]
            if teacher["value"].mean is not None
        }
        for group in groups
    }
    told = "; ".join(
        f"{label}: {listed([f'{name} {signed(value)}' for name, value in values.items()])}"
        for label, values in points.items()
    )
    figure = gains_figure(points, group_looks(groups), "balanced accuracy that a teacher adds")
    return svg(figure, "teachers", f"Shapley values of the teachers. {told}.")


def _scores(groups: Sequence[Group], metric: str) -> list[Meta]:
    """The student's scores by a metric: it is the run's global model."""
    rows = []
    for group in groups:
        found = [run.summary.get("scores", {}).get("global", {}).get("test", {}).get(metric, {}) for run in group.runs]
        cells = [value_over([one.get(key) for one in found]) for key in ("mean", "global_test", "public_test")]
        if any(cell.mean is not None for cell in cells):
            rows.append({"metric": metric, "label": group.label, "cells": cells})
    return rows
