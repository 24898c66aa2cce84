"""The section of a report about scanning centres: a picture, tables and sentences for its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from medfl.contract import Meta
from medfl.report.against import VERDICTS, Axis
from medfl.report.centres import FEWEST, LeftOut, centre_gains
from medfl.report.curves import group_looks
from medfl.report.figures import gains_figure, svg
from medfl.report.formats import count, listed, number, signed
from medfl.report.gains import Comparison, Sets
from medfl.report.groups import Group
from medfl.report.pools import by_seed
from medfl.report.scores import class_names
from medfl.report.section import ReportData, TemplateSection
from medfl.report.selection import Baseline, compared, over


class CentresSection(TemplateSection):
    """Which scanning centres gain."""

    template = "centres.html"

    def content(self, data: ReportData) -> Meta | None:
        """The comparison at each centre, where predictions tell it."""
        centres = centres_section(data.groups, data.predictions, data.baseline)
        return {"centres": centres, "axes": Axis, "verdicts": VERDICTS} if centres else None


def centres_section(groups: Sequence[Group], tested: Mapping[str, Sets], baseline: Baseline = None) -> Meta | None:
    """The section; None where no predictions tell the centre, or there is nothing to compare.

    Args:
        groups: Of the page.
        tested: Run folder, as text, to its test sets.
        baseline: See `medfl.report.selection.compared`.
    """
    bases = {group.label: base for group, base in compared(groups, baseline)}
    found = {
        group.label: gains
        for group in groups
        if group.label in bases and (gains := centre_gains(group, bases[group.label], tested)) is not None
    }
    if not found:
        return None
    tables = {label: comparison for label, (comparison, _) in found.items() if comparison.rows}
    left = {one.name: one for _, out in found.values() for one in out}
    names = class_names(next(run for group in groups for run in group.runs if tested[str(run.folder)]))
    base = over({bases[label].label for label in found})
    return {
        "base": base,
        "bases": {label: bases[label].label for label in found},
        "fewest": FEWEST,
        "tables": tables,
        "picture": _picture(tables, groups, base) if tables else None,
        "several": any(len(by_seed(group)) > 1 for group in groups if group.label in found),
        "left": [_told(one, names) for _, one in sorted(left.items())],
    }


def _picture(tables: Mapping[str, Comparison], groups: Sequence[Group], base: str) -> Markup:
    points = {label: {row.name: row.difference or 0.0 for row in one.rows} for label, one in tables.items()}
    means = "; ".join(f"{label}: {signed(one.mean.difference)}" for label, one in tables.items())
    figure = gains_figure(points, group_looks(groups), f"AUC gained over {base}")
    return svg(figure, "centres", f"AUC gained over {base} at each centre. Mean of the centres: {means}.")


def _told(one: LeftOut, classes: Sequence[str]) -> str:
    """A centre with its images of each class."""
    held = [f"{number(images)} {name}" for images, name in zip(one.images, classes, strict=True) if images]
    return f"{one.name} ({count(sum(one.images), 'image')}: {listed(held)})"
