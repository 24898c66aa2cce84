"""Report section on the teachers of a student: Shapley values and weights of the teachers, and the student's scores.

The student of PFedCDP is a network that the server trains at the end from the clusters' models, its teachers. The
Shapley value of a teacher is its mean contribution to the accuracy of the teachers' joint prediction.
A group of runs contains the runs that differ only in seed or fold. The findings of a run are metadata and tensors that
the run's method recorded for the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from medfl.engine.runs.records import RunRecord
from medfl.types import Meta
from medfl.utils.formats import join_words, signed
from medfl_report.curves import group_looks
from medfl_report.figures import gains_figure, svg
from medfl_report.groups import Group, repeated_word
from medfl_report.scores import MeanAndSpread, key_metrics, value_over
from medfl_report.section import ReportData, TemplateSection

WEIGHT_RULES = {
    "shapley": "weights proportional to the Shapley values, 0 for negative values",
    "equal": "equal weights",
    "literal": "equal weights, loss multiplied by the mean absolute SHAP value of a pixel",
}
"""Mapping from each rule by which teachers are weighted (setting ``refine.teachers``) to a description for the
report."""

SCORE_HEADINGS = {"mean": "mean of sites", "server_test": "server test", "public_test": "public test"}
"""Mapping from each key of a summary of the student's scores to the heading of its column in the report's table."""

FindingsMeta = Mapping[str, Meta]
"""Mapping from the folder of each run, as text, to the metadata of the run's findings."""


class TeachersSection(TemplateSection):
    """Report section on the teachers of a student."""

    template = "teachers.html"
    """File name of the section's HTML template (Jinja), in the folder of this module."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None leaves the section out, as no run has a student with teachers."""
        teachers = teachers_section(data.groups, {run: facts.meta for run, facts in data.findings.items()})
        return {"teachers": teachers} if teachers else None


def teachers_section(groups: Sequence[Group], findings: FindingsMeta) -> Meta | None:
    """Return the variables of the section's template, or None if no run has a student with teachers.

    Args:
        groups: Groups of runs on the page.
        findings: Mapping from the folder of each run, as text, to the metadata of the run's findings.
    """
    parts = [Group(group.label, kept) for group in groups if (kept := _runs_with_teachers(group, findings))]
    if not parts:
        return None
    return {
        "groups": [_group_content(group, findings) for group in parts],
        "figure": _shapley_figure(parts, findings),
        "several": repeated_word(parts),
        "scores": _student_scores(parts),
    }


def _runs_with_teachers(group: Group, findings: FindingsMeta) -> tuple[RunRecord, ...]:
    """Return the runs of a group that have a student with teachers."""
    return tuple(run for run in group.runs if findings[str(run.folder)].get("teachers"))


def _group_content(group: Group, findings: FindingsMeta) -> Meta:
    """Return Shapley values, weights and accuracies of a group of runs, as means over the runs."""
    facts = [findings[str(run.folder)] for run in group.runs]
    names = sorted({name for fact in facts for name in fact["teachers"]})
    coalitions = sorted({who for fact in facts for who in fact["groups"]}, key=lambda who: (_coalition_size(who), who))
    images = sorted({int(fact["weighed_on"]) for fact in facts})
    return {
        "label": group.label,
        "images": " or ".join(map(str, images)),
        "how": join_words(sorted({WEIGHT_RULES.get(how, how) for how in (str(fact["how"]) for fact in facts)})),
        "teachers": [
            {
                "name": name,
                "alone": value_over([fact["groups"].get(name) for fact in facts]),
                "value": value_over([_teacher_number(fact, name, "value") for fact in facts]),
                "weight": value_over([_teacher_number(fact, name, "weight") for fact in facts]),
            }
            for name in names
        ],
        "coalitions": [
            {"members": _coalition_name(who), "accuracy": value_over([fact["groups"].get(who) for fact in facts])}
            for who in coalitions
        ],
    }


def _coalition_size(who: str) -> int:
    """Return the number of teachers in a group of teachers."""
    return len(who.split("+")) if who else 0


def _coalition_name(who: str) -> str:
    """Return the names of a group of teachers as text."""
    return join_words(who.split("+")) if who else "no teacher (guessing)"


def _teacher_number(fact: Meta, teacher: str, key: str) -> float | None:
    """Return a number of a teacher, or None."""
    value = fact["teachers"].get(teacher, {}).get(key)
    return None if value is None else float(value)


def _shapley_figure(groups: Sequence[Group], findings: FindingsMeta) -> Markup:
    """Return the Shapley value of each teacher in each group of runs as SVG."""
    points = {
        group.label: {
            teacher["name"]: teacher["value"].mean
            for teacher in _group_content(group, findings)["teachers"]
            if teacher["value"].mean is not None
        }
        for group in groups
    }
    listing = "; ".join(
        f"{label}: {join_words([f'{name} {signed(value)}' for name, value in values.items()])}"
        for label, values in points.items()
    )
    figure = gains_figure(points, group_looks(groups), "Shapley value (balanced accuracy added by a teacher)")
    return svg(figure, "teachers", f"Shapley values of the teachers. {listing}.")


def _student_scores(groups: Sequence[Group]) -> Meta:
    """Return the student's scores: columns that contain a score, and the rows of each metric."""
    rows: dict[str, list[tuple[str, list[MeanAndSpread]]]] = {}
    for metric in key_metrics(groups):
        for group in groups:
            tests = [run.scores.get("global", {}).get("test", {}) for run in group.runs]
            cells = [
                value_over([getattr(test[metric], key) for test in tests if metric in test]) for key in SCORE_HEADINGS
            ]
            if any(cell.mean is not None for cell in cells):
                rows.setdefault(metric, []).append((group.label, cells))
    filled = [
        place
        for place in range(len(SCORE_HEADINGS))
        if any(cells[place].mean is not None for metric_rows in rows.values() for _, cells in metric_rows)
    ]
    return {
        "columns": [list(SCORE_HEADINGS.values())[place] for place in filled],
        "metrics": {
            metric: [(label, [cells[place] for place in filled]) for label, cells in metric_rows]
            for metric, metric_rows in rows.items()
        },
    }
