"""The report: one HTML file about one or more runs that needs nothing else, no network and no script."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.records import RunRecord, read_run
from medfl.errors import SettingsError, did_you_mean
from medfl.plugins import Registry, SectionRecord, load_plugins
from medfl.types import PathLike
from medfl.utils.files import write_atomic
from medfl.utils.formats import listed
from medfl_report import notices
from medfl_report.groups import group_runs
from medfl_report.paper.files import write_files
from medfl_report.paper.pictures import Picture, kept_pictures
from medfl_report.paper.tables import Table, kept_tables
from medfl_report.predictions import read_tested
from medfl_report.scores import Baseline, named_runs, short_folders
from medfl_report.section import Notice, ReportData, Section, render_template

_logger = logging.getLogger(__name__)

FILE = "report.html"
"""Name of the report in a run folder."""


@dataclass(frozen=True)
class MadeSection:
    """A section on the page, or what is left of one that can't be made.

    Attributes:
        id: Of the section.
        title: Its heading.
        html: What stands below; None for no section.
        notices: For the top of the page.
        sources: For its end.
        style: Its CSS.
        pictures: Those that were drawn for it, for files.
        tables: Those that it shows, for files. A section that writes its own HTML has none.
    """

    id: str
    title: str
    html: Markup | None
    notices: tuple[Notice, ...]
    sources: tuple[str, ...]
    style: str = ""
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class MadePage:
    """A page.

    Attributes:
        html: All of it.
        sections: Those that stand on it.
        tables: Tables before the first section, for files.
    """

    html: str
    sections: tuple[MadeSection, ...]
    tables: tuple[Table, ...] = ()

    @property
    def parts(self) -> list[MadeSection]:
        """The start of the page, as a part with the tables before the first section, and all sections."""
        return [MadeSection("runs", "", None, (), (), tables=self.tables), *self.sections]


def write_report(
    runs: Sequence[PathLike],
    out: PathLike | None = None,
    labels: Sequence[str] | None = None,
    baseline: Baseline = None,
    registry: Registry | None = None,
    figures: PathLike | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write the report of one or more runs. The same run folders, with the same atlas in the data, give the same bytes.

    Only links to files beside the runs depend on where it is written.

    Args:
        runs: Run folders, finished or not; with a run of the method ``local`` the report says who gains.
        out: The file to write; by default ``report.html`` in the first run's folder. What is there is replaced.
        labels: One for each run, as in `medfl_report.groups.group_runs`.
        baseline: Label of the runs that the others are compared with centre by centre and class by class, see
            `medfl_report.scores.compared`; by default the sites alone.
        registry: Its plugins bring the sections; None loads those that are installed.
        figures: A folder for every picture as SVG and PDF and every table as CSV and LaTeX; None writes none.
        notes: What a reader is told at the top, a paragraph each.

    Returns:
        The file.

    Raises:
        SettingsError: If there is no run, two have the same settings and seed, or the baseline is none of them.
        StoreError: If a folder holds no run, or a file can't be read or written.
    """
    if not runs:
        raise SettingsError("no_runs", "expected at least one run folder, got none. Give the --output_dir of a run.")
    target = Path(out) if out is not None else Path(runs[0]) / FILE
    records = [read_run(folder) for folder in runs]
    page = make_page(records, labels, baseline, target.absolute().parent, registry, notes)
    write_atomic(target, page.html.encode())
    if figures is not None:
        write_files(page.parts, Path(figures))
    return target


def render(records: Sequence[RunRecord], labels: Sequence[str] | None = None, registry: Registry | None = None) -> str:
    """The report as HTML, without links; arguments and errors as in `make_page`."""
    return make_page(records, labels, registry=registry).html


def make_page(
    records: Sequence[RunRecord],
    labels: Sequence[str] | None = None,
    baseline: Baseline = None,
    folder: Path | None = None,
    registry: Registry | None = None,
    notes: Sequence[str] = (),
) -> MadePage:
    """The report as HTML, with what it was made of.

    Args:
        records: At least one run.
        labels: One for each run, as in `medfl_report.groups.group_runs`.
        baseline: As in `write_report`.
        folder: Where the page will lie, for links to files beside the runs; None for no links.
        registry: As in `write_report`.
        notes: As in `write_report`.

    Raises:
        SettingsError: If two have the same settings and seed, or the baseline is none of them.
        StoreError: If a file of predictions or findings can't be read.
    """
    groups = group_runs(records, labels)
    known = [group.label for group in groups]
    if isinstance(baseline, str) and baseline not in known:
        raise SettingsError(
            "unknown_choice",
            f"Unknown baseline '{baseline}'. {did_you_mean(baseline, known)}",
            what="baseline",
            choice=baseline,
        )
    runs = named_runs(groups)
    data = ReportData(
        runs=tuple(runs),
        groups=tuple(groups),
        predictions={str(run.folder): read_tested(run) for _, run in runs},
        findings={str(run.folder): read_findings(run.folder) for _, run in runs},
        baseline=baseline,
        folder=folder,
    )
    sections = make_sections(registry or load_plugins(), data)
    shown = tuple(section for section in sections if section.html is not None)
    messages = [Notice("info", note) for note in notes] + [notice for section in sections for notice in section.notices]
    with kept_tables() as tables:
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
            sources=listed([source for section in sections for source in section.sources]),
        )
    return MadePage(str(html), shown, tuple(tables))


def make_sections(registry: Registry, data: ReportData) -> list[MadeSection]:
    """The sections that apply, in the order of the page, and those that can't be made: these have a notice instead.

    Args:
        registry: Knows the sections.
        data: What the page is about.
    """
    records = sorted(registry.report_sections.values(), key=lambda record: (record.order, record.name))
    return [section for record in records if (section := _made(registry, record, data)) is not None]


def _made(registry: Registry, record: SectionRecord, data: ReportData) -> MadeSection | None:
    try:
        section: Section = registry.report_section(record.name)()
        with kept_pictures() as pictures, kept_tables() as tables:
            if not section.applies(data):
                return None
            html, texts = escape(section.render(data)), tuple(section.notices(data))
        if not all(isinstance(notice, Notice) for notice in texts):
            raise TypeError(f"expected each notice to be a Notice, got {texts!r}")
        sources, style = tuple(section.sources(data)), section.style()
        return MadeSection(record.name, record.title, html, texts, sources, style, tuple(pictures), tuple(tables))
    except (Exception, SystemExit) as error:
        (plugin,) = registry.givers("report_section", record.name)
        why = f"{type(error).__name__} in plugin '{plugin}'"  # its own text may hold a path, or a patient's data
        text = f"The section '{record.title}' could not be made: {why}. The rest of the page is complete."
        _logger.warning("%s", text)
        _logger.debug("The traceback of section '%s':", record.name, exc_info=True)
        return MadeSection(record.name, record.title, None, (Notice("warn", text),), ())
