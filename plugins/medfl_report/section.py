"""Base classes of the sections of a report, their input, and the rendering of their templates.

A plugin adds sections with the hook ``medfl_report_sections`` (`medfl.hooks.SectionRecord`), as `medfl_report` does.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from medfl.contract import Findings
from medfl.engine.runs.records import RunRecord
from medfl.types import Meta
from medfl.utils import formats
from medfl.utils import formats as words
from medfl_report.cards.section_content import SectionContent
from medfl_report.groups import Group, output_names
from medfl_report.paper.page_tables import ReportTable, TableCell, cell, record_table
from medfl_report.predictions import PredictionSet
from medfl_report.scores import Baseline, MeanAndSpread
from medfl_report.statistics import Interval

T = TypeVar("T")
"""Type of a result that sections share."""

OUTPUT_NAMES = "output_names"
"""Template variable that contains `ReportData.names`; the filter ``words`` reads it."""

LEVELS = ("bad", "warn", "info")
"""Levels of notices, the most severe first."""


@dataclass(frozen=True, eq=False)
class ReportData:
    """Runs of a page, shared by all its sections. Sections must not modify it.

    Attributes:
        runs: Pairs (name on the page, run).
        groups: The same runs in groups; the runs of a group differ in seed or fold only.
        predictions: Mapping from each run folder (as text) to the run's test sets by site, with the predictions of the
            model that the site exported.
        findings: Mapping from each run folder (as text) to the findings of the run's method: results, beside models and
            scores, that the method provides for a section of its own. Empty findings if there are none.
        baseline: Label of the reference group, or a mapping from each group's label to the label of its reference; None
            for local training.
        folder: Folder of the page, for links to files beside the runs; None for no links.
        unseen: Maps the label of a group to further runs of it, each of which trained without one site. Only the
            section on external validation uses them.
    """

    runs: tuple[tuple[str, RunRecord], ...]
    groups: tuple[Group, ...]
    predictions: Mapping[str, Mapping[str, PredictionSet]]
    findings: Mapping[str, Findings]
    baseline: Baseline = None
    folder: Path | None = None
    unseen: Mapping[str, Sequence[RunRecord]] = field(default_factory=dict)
    _results: dict[Callable[[ReportData], Any], Any] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the network outputs; empty if no run names them or the runs differ in them."""
        return output_names(self.groups)

    def compute_once(self, function: Callable[[ReportData], T]) -> T:
        """Return the function's result for this page, computed at the first call and cached for other sections."""
        if function not in self._results:
            self._results[function] = function(self)
        result: T = self._results[function]
        return result

    def of(self, figure: str) -> Mapping[str, Mapping[str, PredictionSet]]:
        """Return the predictions of the runs to which a figure applies; empty predictions for other runs.

        Args:
            figure: Keyword of the figure, such as ``calibration``; the objective of a run lists its keywords
                (`Objective.figures`).
        """
        return {
            str(run.folder): self.predictions[str(run.folder)] if figure in run.objective.figures else {}
            for _, run in self.runs
        }


@dataclass(frozen=True)
class Notice:
    """A notice at the top of the page.

    Attributes:
        level: ``bad`` if the numbers are doubtful, ``warn`` if their interpretation is limited, else ``info``.
        text: Sentence of the notice.
        privacy_of: Labels of the groups whose privacy the notice describes. The page then does not state that these
            groups have no differential privacy.
    """

    level: Literal["bad", "warn", "info"]
    text: str
    privacy_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"expected a level of {', '.join(LEVELS)}, got {self.level!r}")


class Section(ABC):
    """A section of the page.

    The same data must give the same text, so that the same runs give the same page. Each page makes a new object. If a
    section raises, the page contains a notice in its place and all other sections.
    """

    def applies(self, data: ReportData) -> bool:
        """Return whether the page contains this section; by default True."""
        return True

    @abstractmethod
    def render(self, data: ReportData) -> Markup:
        """Return the content below the heading. Text that is not `Markup` is escaped."""

    def notices(self, data: ReportData) -> list[Notice]:
        """Return notices for the top of the page; by default none."""
        return []

    def sources(self, data: ReportData) -> list[str]:
        """Return the sources of the section other than the run folders, for the page's footer; by default none."""
        return []

    def style(self) -> str:
        """Return CSS that is added after the page's own style sheet; by default none."""
        return ""

    def card(self, data: ReportData) -> SectionContent | None:
        """Return the section's part of a model card, or None for no part; by default None.

        Args:
            data: Data of a single run, without predictions and findings.
        """
        return None


class TemplateSection(Section):
    """A section that fills a Jinja template.

    Attributes:
        template: File name of the template, in the folder of the class's module; see `render_template`.
        stylesheet: File name of a CSS file in the same folder; None without one.
    """

    template: ClassVar[str]
    stylesheet: ClassVar[str | None] = None

    _seen: ReportData | None = None
    _values: Meta | None = None

    @abstractmethod
    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None if there is nothing to show, which leaves the section out."""

    def values(self, data: ReportData) -> Meta | None:
        """Return the variables of the template (`content`), computed once for each page."""
        if self._seen is not data:
            self._values = self.content(data)
            self._seen = data
        return self._values

    def applies(self, data: ReportData) -> bool:
        """Return whether the page contains this section: whether `content` is not None."""
        return self.values(data) is not None

    def render(self, data: ReportData) -> Markup:
        """Return the filled template. Its filter ``words`` uses the names of the network outputs."""
        values = {OUTPUT_NAMES: data.names, **(self.values(data) or {})}
        return render_template(inspect.getfile(type(self)), self.template, **values)

    def style(self) -> str:
        """Return the content of the style sheet; empty without one."""
        return "" if self.stylesheet is None else str(render_template(inspect.getfile(type(self)), self.stylesheet))


def render_template(beside: str, name: str, **values: Any) -> Markup:
    """Return a filled template. It can import medfl's templates, such as ``macros.html``.

    Args:
        beside: ``__file__`` of a module. The template is searched in the module's folder, then in medfl's templates.
        name: File name of the template.
        **values: Variables of the template. Text that is not `Markup` is escaped.

    Raises:
        jinja2.TemplateError: If the template does not exist, is invalid, or uses a variable without a value.
    """
    return Markup(environment(str(Path(beside).parent)).get_template(name).render(values))  # noqa: S704


@pass_context
def _words(context: Context, metric: str) -> str:
    """Return the name of a metric in words, with the name of its output if the template knows it."""
    return words.metric_words(metric, context.get(OUTPUT_NAMES, ()))


def show_table(table: ReportTable) -> Markup:
    """Return the HTML of a table, and record the table for files (`medfl report --figures`)."""
    record_table(table)
    return render_template(__file__, "table.html", table=table)


def value_cell(value: MeanAndSpread, sign: bool = False) -> TableCell:
    """Return a cell with a mean, and the standard deviation as a note."""
    spread = None if value.spread is None else f"± {formats.score(value.spread)}"
    return cell((formats.signed if sign else formats.score)(value.mean), spread)


def interval_cell(interval: Interval | None, sign: bool = False) -> TableCell:
    """Return a cell with a number, and its interval, if known, as a note; a dash for None."""
    if interval is None:
        return cell(formats.MISSING)
    written = formats.signed if sign else formats.score
    if math.isnan(interval.low):
        return cell(written(interval.difference))
    return cell(written(interval.difference), f"{written(interval.low)} to {written(interval.high)}")


@cache
def environment(folder: str) -> Environment:
    """Return the Jinja environment for the templates of a folder and of medfl, with escaping and strict variables."""
    made = Environment(
        loader=ChoiceLoader([FileSystemLoader(folder), PackageLoader("medfl_report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    made.globals |= {"table": ReportTable, "cell": cell}
    made.filters |= {
        "score": formats.score,
        "signed": formats.signed,
        "number": formats.number,
        "sentence": formats.sentence,
        "size": formats.size,
        "duration": formats.duration,
        "p_value": formats.p_value,
        "p_phrase": formats.p_phrase,
        "commands": formats.commands,
        "words": _words,
        "meaning": words.metric_meaning,
        "shown": show_table,
        "mean": value_cell,
        "ranged": interval_cell,
    }
    return made
