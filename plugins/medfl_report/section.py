"""A section of a report: what it gets, what it gives, and how its template becomes a part of the page.

Any plugin brings sections by the hook ``medfl_report_sections`` (`medfl.hooks.SectionRecord`); those of medfl itself
are of the same kind, listed in `medfl_report`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from medfl.contract import Findings
from medfl.engine.runs.records import RunRecord
from medfl.types import Meta
from medfl.utils import formats
from medfl.utils import formats as words
from medfl_report.cards.card_parts import CardPart
from medfl_report.groups import Group, output_names
from medfl_report.paper.tables import Cell, Table, cell, keep_table
from medfl_report.predictions import Tested
from medfl_report.scores import Baseline, Value
from medfl_report.statistics import Interval

OUTPUT_NAMES = "output_names"
"""Variable of a template with `ReportData.names`, which its filter ``words`` reads."""

LEVELS = ("bad", "warn", "info")
"""Of notices, the worst first."""


@dataclass(frozen=True, eq=False)
class ReportData:
    """What a page is about. It is read, never changed: all sections get the same one.

    Attributes:
        runs: Each run with its name on the page.
        groups: The same runs; those of a group differ in seed or fold only.
        predictions: Run folder, as text, to site to its test set under the model that it takes home.
        findings: Run folder, as text, to what its method found out; empty where it wrote nothing.
        baseline: What groups are compared with, see `medfl_report.scores.compared`.
        folder: Where the page will lie, for links to files beside the runs; None for no links.
    """

    runs: tuple[tuple[str, RunRecord], ...]
    groups: tuple[Group, ...]
    predictions: Mapping[str, Mapping[str, Tested]]
    findings: Mapping[str, Findings]
    baseline: Baseline = None
    folder: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What each output of the networks is for; empty where nobody named them, or runs differ in that."""
        return output_names(self.groups)

    def of(self, figure: str) -> Mapping[str, Mapping[str, Tested]]:
        """The predictions of those runs whose objective has a figure (`Objective.figures`); none of the others."""
        return {
            str(run.folder): self.predictions[str(run.folder)] if figure in run.objective.figures else {}
            for _, run in self.runs
        }


@dataclass(frozen=True)
class Notice:
    """A sentence at the top of the page.

    Attributes:
        level: ``bad`` makes numbers doubtful, ``warn`` limits what they say, ``info`` is good to know.
        text: The sentence.
        privacy_of: Labels of the groups whose privacy it tells; the page does not go on to say that they have none.
    """

    level: Literal["bad", "warn", "info"]
    text: str
    privacy_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"expected a level of {', '.join(LEVELS)}, got {self.level!r}")


class Section(ABC):
    """A section of the page. The same data must give the same text, for the same runs give the same bytes.

    An object is made for each page. One that raises is named on the page, which has all other sections.
    """

    def applies(self, data: ReportData) -> bool:
        """Whether the page has this section; by default it always has."""
        return True

    @abstractmethod
    def render(self, data: ReportData) -> Markup:
        """What stands below the heading, if the section applies; text that is no `Markup` is escaped."""

    def notices(self, data: ReportData) -> list[Notice]:
        """What a reader must know before any number, if the section applies; by default nothing."""
        return []

    def sources(self, data: ReportData) -> list[str]:
        """What the section was made from beside the files of the run folders, for the end of the page."""
        return []

    def style(self) -> str:
        """CSS of its own, for the head of the page, after medfl's; by default nothing."""
        return ""

    def card(self, data: ReportData) -> CardPart | None:
        """Return the section's part of a model card, or None for no part; by default None.

        Args:
            data: A single run, without predictions and findings.
        """
        return None


class TemplateSection(Section):
    """A section with a template.

    Attributes:
        template: Name of the file, beside the module of the class; see `render_template`.
        stylesheet: Name of a CSS file beside it, if the section has classes of its own.
    """

    template: ClassVar[str]
    stylesheet: ClassVar[str | None] = None

    _seen: ReportData | None = None
    _values: Meta | None = None

    @abstractmethod
    def content(self, data: ReportData) -> Meta | None:
        """The template's variables; None where there is nothing to show, and so no section."""

    def values(self, data: ReportData) -> Meta | None:
        """The same, found once for all that is asked about one page."""
        if self._seen is not data:
            self._values = self.content(data)
            self._seen = data
        return self._values

    def applies(self, data: ReportData) -> bool:
        """Whether there is any content."""
        return self.values(data) is not None

    def render(self, data: ReportData) -> Markup:
        """The template, filled; its filter ``words`` knows the names of outputs."""
        values = {OUTPUT_NAMES: data.names, **(self.values(data) or {})}
        return render_template(inspect.getfile(type(self)), self.template, **values)

    def style(self) -> str:
        """The style sheet, if there is one."""
        return "" if self.stylesheet is None else str(render_template(inspect.getfile(type(self)), self.stylesheet))


def render_template(beside: str, name: str, **values: Any) -> Markup:
    """Fill a template. It can import medfl's own, such as ``macros.html``, and has the filters of `environment`.

    Args:
        beside: A module's ``__file__``; the template is looked for in its folder, then among those of medfl.
        name: The template's file name.
        **values: Its variables. All that is put into a page is escaped unless it is `Markup`.

    Raises:
        jinja2.TemplateError: If there is no such template, or it is wrong or lacks a value.
    """
    return Markup(environment(str(Path(beside).parent)).get_template(name).render(values))  # noqa: S704


@pass_context
def _words(context: Context, metric: str) -> str:
    """How a metric is called, with the name of what it is of where the template knows it."""
    return words.metric_words(metric, context.get(OUTPUT_NAMES, ()))


def show_table(table: Table) -> Markup:
    """Return the HTML of a table, and keep the table for files (`medfl report --figures`)."""
    keep_table(table)
    return render_template(__file__, "table.html", table=table)


def value_cell(value: Value, sign: bool = False) -> Cell:
    """Return a cell with a mean, and the spread as small print."""
    spread = None if value.spread is None else f"± {formats.score(value.spread)}"
    return cell((formats.signed if sign else formats.score)(value.mean), spread)


def interval_cell(interval: Interval | None, sign: bool = False) -> Cell:
    """Return a cell with a number, and its interval as small print; a dash for None."""
    if interval is None:
        return cell(formats.MISSING)
    written = formats.signed if sign else formats.score
    return cell(written(interval.difference), f"{written(interval.low)} to {written(interval.high)}")


@cache
def environment(folder: str) -> Environment:
    """The templates of a folder and of medfl: everything that is put in is escaped, a missing value is an error."""
    made = Environment(
        loader=ChoiceLoader([FileSystemLoader(folder), PackageLoader("medfl_report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    made.globals |= {"table": Table, "cell": cell}
    made.filters |= {
        "score": formats.score,
        "signed": formats.signed,
        "number": formats.number,
        "sentence": formats.sentence,
        "size": formats.size,
        "duration": formats.duration,
        "commands": formats.commands,
        "words": _words,
        "meaning": words.metric_meaning,
        "shown": show_table,
        "mean": value_cell,
        "ranged": interval_cell,
    }
    return made
