"""The report: one self-contained HTML file about one or more runs, without scripts and network access."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.records import RunRecord, read_run
from medfl.errors import SettingsError, did_you_mean
from medfl.plugins import Registry, SectionRecord, load_plugins
from medfl.types import PathLike
from medfl.utils.files import write_atomic
from medfl.utils.formats import join_words
from medfl_report import notices
from medfl_report.groups import group_runs
from medfl_report.paper.export import write_files
from medfl_report.paper.page_figures import PageFigure, recorded_figures
from medfl_report.paper.page_tables import ReportTable, recorded_tables
from medfl_report.predictions import read_prediction_sets
from medfl_report.scores import Baseline, named_runs, short_folders
from medfl_report.section import Notice, ReportData, Section, render_template

_logger = logging.getLogger(__name__)

FILE = "report.html"
"""File name of the report in a run folder."""


@dataclass(frozen=True)
class RenderedSection:
    """Content of a section. A section that failed has a notice and no HTML.

    Attributes:
        id: Identifier of the section.
        title: Heading.
        html: Content below the heading; None if the section failed.
        notices: Notices for the top of the page.
        sources: Sources for the footer of the page.
        style: CSS of the section.
        figures: Figures of the section, for files.
        tables: Tables of the section, for files. A section that writes its own HTML has none.
    """

    id: str
    title: str
    html: Markup | None
    notices: tuple[Notice, ...]
    sources: tuple[str, ...]
    style: str = ""
    figures: tuple[PageFigure, ...] = ()
    tables: tuple[ReportTable, ...] = ()


@dataclass(frozen=True)
class RenderedPage:
    """Content of a page.

    Attributes:
        html: HTML of the page.
        sections: Sections on the page.
        tables: Tables before the first section, for files.
    """

    html: str
    sections: tuple[RenderedSection, ...]
    tables: tuple[ReportTable, ...] = ()

    @property
    def parts(self) -> list[RenderedSection]:
        """All parts of the page: a part with the id ``runs`` for the tables before the sections, then the sections."""
        return [RenderedSection("runs", "", None, (), (), tables=self.tables), *self.sections]


def write_report(
    runs: Sequence[PathLike],
    out: PathLike | None = None,
    labels: Sequence[str] | None = None,
    baseline: Baseline = None,
    registry: Registry | None = None,
    figures: PathLike | None = None,
    notes: Sequence[str] = (),
    unseen: Mapping[str, Sequence[PathLike]] | None = None,
) -> Path:
    """Write the report of one or more runs, and files for papers if wanted; return the path of the report.

    The same run folders, with the same atlas in the data, give the same bytes. Only links to files beside the runs
    depend on the place of the report.

    Args:
        runs: Run folders, finished or not. With a run of the method ``local`` the report compares the others with it.
        out: Path of the report; by default ``report.html`` in the first run's folder. An existing file is replaced.
        labels: Label of each run; runs with the same label form a group. By default a group has the runs that differ
            only in seed and fold.
        baseline: Label of the reference, or a mapping from each group's label to its reference, see
            `medfl_report.scores.compared`; by default local training.
        registry: Registry whose plugins provide the sections; None loads the installed plugins.
        figures: Folder for the figures and tables of a paper (`medfl_report.paper.export`); None writes none.
        notes: Texts for the top of the page, a paragraph each.
        unseen: Maps the label of a group to further runs of it, each of which trained without one site
            (`ReportData.unseen`); None for no such runs.

    Raises:
        SettingsError: If there is no run, two runs have the same settings and seed, or the reference is not a label.
        StoreError: If a folder contains no run, or a file can't be read or written.
    """
    if not runs:
        raise SettingsError("no_runs", "expected at least one run folder, got none. Give the --output_dir of a run.")
    target = Path(out) if out is not None else Path(runs[0]) / FILE
    records = [read_run(folder) for folder in runs]
    further = {label: [read_run(folder) for folder in folders] for label, folders in (unseen or {}).items()}
    page = make_page(records, labels, baseline, target.absolute().parent, registry, notes, further)
    write_atomic(target, page.html.encode())
    if figures is not None:
        write_files(page.parts, Path(figures))
    return target


def render(records: Sequence[RunRecord], labels: Sequence[str] | None = None, registry: Registry | None = None) -> str:
    """Return the HTML of the report, without links.

    Args:
        records: At least one run.
        labels: Label of each run; None for labels from methods and settings.
        registry: Registry whose plugins provide the sections; None loads the installed plugins.
    """
    return make_page(records, labels, registry=registry).html


def make_page(
    records: Sequence[RunRecord],
    labels: Sequence[str] | None = None,
    baseline: Baseline = None,
    folder: Path | None = None,
    registry: Registry | None = None,
    notes: Sequence[str] = (),
    unseen: Mapping[str, Sequence[RunRecord]] | None = None,
) -> RenderedPage:
    """Render the report.

    Args:
        records: At least one run.
        labels: Label of each run; runs with the same label form a group. By default a group has the runs that differ
            only in seed and fold.
        baseline: Label of the reference, or a mapping from each group's label to the label of its reference; by default
            local training.
        folder: Folder of the page, for links to files beside the runs; None for no links.
        registry: Registry whose plugins provide the sections; None loads the installed plugins.
        notes: Texts for the top of the page, a paragraph each.
        unseen: Maps the label of a group to further runs of it, each of which trained without one site
            (`ReportData.unseen`); None for no such runs.

    Raises:
        SettingsError: If two runs have the same settings and seed, or the reference is not a label.
        StoreError: If a file of predictions or findings can't be read.
    """
    groups = group_runs(records, labels)
    labels_of_groups = [group.label for group in groups]
    if isinstance(baseline, str) and baseline not in labels_of_groups:
        raise SettingsError(
            "unknown_choice",
            f"Unknown baseline '{baseline}'. {did_you_mean(baseline, labels_of_groups)}",
            what="baseline",
            choice=baseline,
        )
    runs = named_runs(groups)
    data = ReportData(
        runs=tuple(runs),
        groups=tuple(groups),
        predictions={str(run.folder): read_prediction_sets(run) for _, run in runs},
        findings={str(run.folder): read_findings(run.folder) for _, run in runs},
        baseline=baseline,
        folder=folder,
        unseen=unseen or {},
    )
    sections = make_sections(registry or load_plugins(), data)
    shown = tuple(section for section in sections if section.html is not None)
    messages = [Notice("info", note) for note in notes] + [notice for section in sections for notice in section.notices]
    with recorded_tables() as tables:
        html = render_template(
            __file__,
            "report.html",
            title=notices.headline(groups),
            sentence=notices.summary_sentence(runs),
            notices=notices.make_notices(groups, messages),
            sections=shown,
            style=Markup("".join(section.style for section in sections)),  # noqa: S704  (of installed plugins)
            runs=runs,
            folders=short_folders([run for _, run in runs]),
            sources=join_words([source for section in sections for source in section.sources]),
        )
    return RenderedPage(str(html), shown, tuple(tables))


def make_sections(registry: Registry, data: ReportData) -> list[RenderedSection]:
    """Render the sections that apply, in the order of the page. A section that raises becomes a notice.

    Args:
        registry: Registry with the sections.
        data: Data of the page.
    """
    records = sorted(registry.report_sections.values(), key=lambda record: (record.order, record.name))
    return [section for record in records if (section := _render_section(registry, record, data)) is not None]


def _render_section(registry: Registry, record: SectionRecord, data: ReportData) -> RenderedSection | None:
    """Render a section; None if it does not apply. If it raises, log the error and return a section with a notice."""
    try:
        section: Section = registry.report_section(record.name)()
        with recorded_figures() as figures, recorded_tables() as tables:
            if not section.applies(data):
                return None
            html, texts = escape(section.render(data)), tuple(section.notices(data))
        if not all(isinstance(notice, Notice) for notice in texts):
            raise TypeError(f"expected each notice to be a Notice, got {texts!r}")
        sources, style = tuple(section.sources(data)), section.style()
        return RenderedSection(record.name, record.title, html, texts, sources, style, tuple(figures), tuple(tables))
    except (Exception, SystemExit) as error:
        (plugin,) = registry.plugins_listing("report_section", record.name)
        why = f"{type(error).__name__} in plugin '{plugin}'"  # the error's text may contain a path or patient data
        text = f"The section '{record.title}' could not be made: {why}. The rest of the page is complete."
        _logger.warning("%s", text)
        _logger.debug("The traceback of section '%s':", record.name, exc_info=True)
        return RenderedSection(record.name, record.title, None, (Notice("warn", text),), ())
