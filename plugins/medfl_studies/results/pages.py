"""Results pages, which are generated from templates and raw results.

A template ``templates/NAME.md.j2`` makes the page ``NAME.md``. It is Markdown with Jinja expressions for every number
and table. `TemplateFunctions` lists what a template can call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from medfl.errors import MedflError, SettingsError, StoreError, did_you_mean
from medfl_report.data_set_ranks import ranks_markdown
from medfl_report.statistics import holm
from medfl_studies.records.paper_items import read_papers
from medfl_studies.results import (
    fair_tables,
    page_formats,
    page_statistics,
    page_tables,
    paper_curves,
    paper_groups,
    paper_tables,
)
from medfl_studies.results.attack_results import AttackResults, attack_results
from medfl_studies.results.page_statistics import DataScores
from medfl_studies.results.paper_orders import ItemResult, item_result
from medfl_studies.results.recorded_study import StudyResults, read_results

TEMPLATES, ENDING = "templates", ".md.j2"
"""Folder of the templates within the folder of the pages, and ending of their names."""

RAW = "raw"
"""Folder of the raw results within the folder of the pages; each study has a folder in it."""

INDEX = "README.md"
"""Index of the pages, which has no results."""


@dataclass(frozen=True)
class Page:
    """A results page.

    Attributes:
        path: Path of the page.
        template: Path of its template.
    """

    path: Path
    template: Path

    @property
    def name(self) -> str:
        """Name of the page, without its ending."""
        return self.path.stem


@dataclass(frozen=True)
class RenderedPage:
    """A page that was generated.

    Attributes:
        text: Text of the page.
        studies: Names of the studies whose raw results the page shows, each once.
    """

    text: str
    studies: tuple[str, ...]


@dataclass
class TemplateFunctions:
    """Functions that a template can call.

    Attributes:
        folder: Folder of the pages.
        read: Function that reads the raw results of a study.
        studies: Names of the studies that were read.
    """

    folder: Path
    read: Callable[[Path], StudyResults]
    studies: list[str] = field(default_factory=list)

    def study(self, name: str, data: str, metric: str, min_images: int = 0) -> DataScores:
        """Return the scores of a study on one data set.

        Args:
            name: Name of the study's folder of raw results.
            data: Name of the data set in the study.
            metric: Metric of the estimates.
            min_images: Smallest number of test images of a site that counts in a mean over the sites.
        """
        self.studies.append(name)
        return DataScores(self.read(self.folder / RAW / name), data, metric, min_images)

    def attacks(self, name: str, data: str) -> AttackResults:
        """Return the results of a study's attacks on one data set.

        Args:
            name: Name of the study's folder of raw results.
            data: Name of the data set in the study.
        """
        self.studies.append(name)
        return attack_results(self.read(self.folder / RAW / name), data)

    def papers(self, name: str) -> list[ItemResult]:
        """Return the tables and figures of papers, each beside the runs of its study if there are raw results.

        Args:
            name: Name of the YAML file in the folder of the templates.
        """
        listed = read_papers(self.folder / TEMPLATES / name)
        return [item_result(paper, item, self._raw(item.raw)) for paper in listed for item in paper.items]

    def _raw(self, name: str | None) -> StudyResults | None:
        """Return the raw results of a study; None if there is no folder of them."""
        if name is None or not (self.folder / RAW / name).is_dir():
            return None
        self.studies.append(name)
        return self.read(self.folder / RAW / name)

    def figures(self, name: str) -> dict[str, float]:
        """Return the numbers of a JSON file of measured figures, by name."""
        return page_tables.read_figures(self.folder / name)

    def require(self, holds: bool, claim: str) -> str:
        """Return an empty text, or raise an error if a claim of the prose does not hold for the numbers.

        Args:
            holds: Whether the claim holds.
            claim: The claim.

        Raises:
            StoreError: If the claim does not hold.
        """
        if not holds:
            raise StoreError(
                "claim_fails",
                f"The numbers contradict a claim of the page: {claim}. Change the prose of the template.",
                claim=claim,
            )
        return ""


def find_pages(folder: Path) -> list[Page]:
    """Return all results pages of a folder, sorted by name.

    Raises:
        StoreError: If the folder has no templates.
    """
    templates = {path.name.removesuffix(ENDING): path for path in (folder / TEMPLATES).glob(f"*{ENDING}")}
    if not templates:
        raise StoreError(
            "missing_folder",
            f"expected templates of results pages in '{folder / TEMPLATES}', found none. Give the folder with --docs.",
            path=folder,
        )
    return [Page(folder / f"{name}.md", template) for name, template in sorted(templates.items())]


def choose_pages(folder: Path, names: list[str]) -> list[Page]:
    """Return the pages with some names; all pages without any name.

    Args:
        folder: Folder of the pages.
        names: Names of pages, with or without path and ending.

    Raises:
        SettingsError: If a name is unknown, or its page has no template.
    """
    pages = {page.name: page for page in find_pages(folder)}
    chosen = [Path(name).name.removesuffix(".md") for name in names]
    for name in chosen:
        if name not in pages:
            raise SettingsError(
                "unknown_choice",
                f"No template of a results page '{name}' in '{folder / TEMPLATES}'. {did_you_mean(name, pages)}",
                what="page",
                choice=name,
            )
    return [pages[name] for name in chosen] if chosen else list(pages.values())


def page_renderer(folder: Path, read: Callable[[Path], StudyResults] | None = None) -> Callable[[Page], RenderedPage]:
    """Return a function that generates the pages of a folder; the raw results of each study are read once.

    Args:
        folder: Folder of the pages.
        read: Function that reads the raw results of a study; None means `read_results` with a cache.

    Returns:
        A function that returns the text of a page that has a template. It raises SettingsError if the template is
            wrong, and StoreError if raw results are missing or contradict a claim.
    """
    read = read or cache(read_results)

    def render(page: Page) -> RenderedPage:
        functions = TemplateFunctions(folder, read)
        environment = _environment(page.template.parent, functions)
        try:
            text = environment.get_template(page.template.name).render()
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            place = f"'{page.template}'" + (f", line {line}" if line else "")
            raise SettingsError(
                "bad_template", f"{place}: {error}. Correct the template.", path=page.template, line=line
            ) from error
        except MedflError as error:
            raise error.reworded(f"'{page.template}': {error}") from error
        return RenderedPage(text, tuple(dict.fromkeys(functions.studies)))

    return render


def _environment(folder: Path, functions: TemplateFunctions) -> SandboxedEnvironment:
    """Return the environment of the templates. An unknown name is an error."""
    environment = SandboxedEnvironment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=False,  # pages are Markdown
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "study": functions.study,
        "attacks": functions.attacks,
        "papers": functions.papers,
        "columns_without_runs": paper_tables.columns_without_runs,
        "correlations": paper_tables.correlations,
        "curve_table": paper_tables.curve_table,
        "group_table": paper_groups.group_table,
        "measure_notes": paper_tables.measure_notes,
        "open_orders": paper_tables.open_orders,
        "orders_summary": paper_tables.orders_summary,
        "orders_table": paper_tables.orders_table,
        "paper_state": paper_tables.paper_state,
        "paper_summary": paper_tables.paper_summary,
        "paper_table": paper_tables.paper_table,
        "papers_overview": paper_tables.papers_overview,
        "run_scale": paper_tables.run_scale,
        "study_names": paper_tables.study_names,
        "time_note": paper_curves.time_note,
        "figures": functions.figures,
        "image_epsilon": page_statistics.image_epsilon,
        "site_epsilon": page_statistics.site_epsilon,
        "require": functions.require,
        "scores_table": page_tables.scores_table,
        "sites_table": page_tables.sites_table,
        "differences_table": page_tables.differences_table,
        "figures_table": page_tables.figures_table,
        "methods_table": page_tables.methods_table,
        "compare_ranks_over": page_tables.compare_ranks_over,
        "ranks_markdown": ranks_markdown,
        "holm": holm,
        "mean_noise": page_tables.mean_noise,
        "fair_table": fair_tables.fair_table,
        "validation_table": fair_tables.validation_table,
        "validation_curve": fair_tables.validation_curve,
        "still_rising": fair_tables.still_rising,
        "compare_both": fair_tables.compare_both,
        "choose_on_validation": fair_tables.choose_on_validation,
    }
    environment.filters |= {
        "short": page_formats.short,
        "signed": page_formats.signed,
        "size": page_formats.size,
        "interval": page_formats.interval,
        "mean_cell": page_formats.mean_cell,
        "ends": page_formats.ends,
        "words": page_formats.words,
        "count": page_formats.count_word,
    }
    return environment
