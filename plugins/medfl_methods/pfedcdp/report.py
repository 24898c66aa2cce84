"""The section of a report about the teachers of a student: what each is worth, and how the student scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from medfl.engine.runs.records import RunRecord
from medfl.types import Meta
from medfl.utils.formats import listed, signed
from medfl_report.curves import group_looks
from medfl_report.figures import gains_figure, svg
from medfl_report.groups import Group, several
from medfl_report.scores import Value, key_metrics, value_over
from medfl_report.section import ReportData, TemplateSection

WAYS = {
    "shapley": "weighed by their Shapley values, those below 0 by nothing",
    "equal": "weighed equally",
    "literal": "weighed equally, with the loss multiplied by the mean absolute SHAP value of a pixel",
}
"""How teachers were weighed, in words."""

SETS = {"mean": "mean of sites", "global_test": "global test", "public_test": "public test"}
"""What a summary calls a score of the student to what a table does."""

Findings = Mapping[str, Meta]
"""Run folder, as text, to the meta of its findings."""


class TeachersSection(TemplateSection):
    """The teachers of a student."""

    template = "teachers.html"

    def content(self, data: ReportData) -> Meta | None:
        """What each is worth, where a run had a student."""
        teachers = teachers_section(data.groups, {run: facts.meta for run, facts in data.findings.items()})
        return {"teachers": teachers} if teachers else None


def teachers_section(groups: Sequence[Group], findings: Findings) -> Meta | None:
    """The section; None where no run had a student with teachers.

    Args:
        groups: Of the page.
        findings: What each run found out (`medfl.engine.runs.findings`).
    """
    parts = [Group(group.label, kept) for group in groups if (kept := _taught(group, findings))]
    if not parts:
        return None
    return {
        "groups": [_group(group, findings) for group in parts],
        "picture": _picture(parts, findings),
        "several": several(parts),
        "scores": _scores(parts),
    }


def _taught(group: Group, findings: Findings) -> tuple[RunRecord, ...]:
    return tuple(run for run in group.runs if findings[str(run.folder)].get("teachers"))


def _group(group: Group, findings: Findings) -> Meta:
    """Values, weights and worth of a group of runs, as means over the runs."""
    facts = [findings[str(run.folder)] for run in group.runs]
    names = sorted({name for fact in facts for name in fact["teachers"]})
    coalitions = sorted({who for fact in facts for who in fact["groups"]}, key=lambda who: (_members(who), who))
    images = sorted({int(fact["weighed_on"]) for fact in facts})
    return {
        "label": group.label,
        "images": " or ".join(map(str, images)),
        "how": listed(sorted({WAYS.get(how, how) for how in (str(fact["how"]) for fact in facts)})),
        "teachers": [
            {
                "name": name,
                "alone": value_over([fact["groups"].get(name) for fact in facts]),
                "value": value_over([_fact(fact, name, "value") for fact in facts]),
                "weight": value_over([_fact(fact, name, "weight") for fact in facts]),
            }
            for name in names
        ],
        "worth": [
            {"who": _named(who), "value": value_over([fact["groups"].get(who) for fact in facts])} for who in coalitions
        ],
    }


def _members(who: str) -> int:
    return len(who.split("+")) if who else 0


def _named(who: str) -> str:
    return listed(who.split("+")) if who else "nobody, which is guessing"


def _fact(fact: Meta, teacher: str, key: str) -> float | None:
    value = fact["teachers"].get(teacher, {}).get(key)
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
    listing = "; ".join(
        f"{label}: {listed([f'{name} {signed(value)}' for name, value in values.items()])}"
        for label, values in points.items()
    )
    figure = gains_figure(points, group_looks(groups), "balanced accuracy that a teacher adds")
    return svg(figure, "teachers", f"Shapley values of the teachers. {listing}.")


def _scores(groups: Sequence[Group]) -> Meta:
    """The student's scores, as columns that have any and the rows of each metric: it is the run's global model."""
    rows: dict[str, list[tuple[str, list[Value]]]] = {}
    for metric in key_metrics(groups):
        for group in groups:
            tests = [run.scores.get("global", {}).get("test", {}) for run in group.runs]
            cells = [value_over([getattr(test[metric], key) for test in tests if metric in test]) for key in SETS]
            if any(cell.mean is not None for cell in cells):
                rows.setdefault(metric, []).append((group.label, cells))
    filled = [
        place
        for place in range(len(SETS))
        if any(cells[place].mean is not None for metric_rows in rows.values() for _, cells in metric_rows)
    ]
    return {
        "columns": [list(SETS.values())[place] for place in filled],
        "metrics": {
            metric: [(label, [cells[place] for place in filled]) for label, cells in metric_rows]
            for metric, metric_rows in rows.items()
        },
    }
