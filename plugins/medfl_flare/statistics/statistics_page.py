"""The statistics report as a self-contained HTML page, as Markdown, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from medfl.utils.files import write_atomic
from medfl.utils.formats import as_text, sentence, table_lines
from medfl_flare.statistics.disclosure import MOMENT_DIGITS
from medfl_flare.statistics.outliers import MIN_SITES, SIGNIFICANCE
from medfl_flare.statistics.report_content import (
    StatisticsReport,
    deviation_text,
    guarantee_text,
    outliers_in_figure,
    quantile_bands,
    quantile_texts,
)
from medfl_flare.statistics.site_statistics import DisclosedCounts
from medfl_flare.statistics.statistics_figures import bands_figure, bars_figure
from medfl_report.figures import svg
from medfl_report.section import render_template

HTML_FILE_NAME, MARKDOWN_FILE_NAME, JSON_FILE_NAME = "statistics.html", "statistics.md", "statistics.json"
"""Names of the report's files in its folder: the HTML page, the Markdown file and the JSON file."""

MAX_FIGURES = 12
"""Maximum number of figures of counts, and of figures of quantiles."""


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure and its caption.

    Attributes:
        figure: The figure as HTML.
        caption: Text below the figure: its title and the outlier sites.
    """

    figure: Markup
    caption: str


def write_statistics_report(report: StatisticsReport, out: Path) -> Path:
    """Write the HTML page, the Markdown file and the JSON file of a report, and return the path of the page.

    Args:
        report: Contents of the report.
        out: Folder; created if it does not exist. Files of the same names are replaced.

    Raises:
        StoreError: If a file can't be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "sites": {site: each.model_dump(mode="json") for site, each in report.sites.items()},
        "missing": dict(report.missing),
        "outliers": report.outlier_sites,
    }
    if (scale := report.scale()) is not None:
        content["feature_scale"] = {"mean": scale.mean, "std": scale.std}
    write_atomic(out / JSON_FILE_NAME, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    write_atomic(out / MARKDOWN_FILE_NAME, render_markdown(report).encode())
    write_atomic(out / HTML_FILE_NAME, render_html(report).encode())
    return out / HTML_FILE_NAME


def render_html(report: StatisticsReport) -> str:
    """Return a report with its figures as a self-contained HTML page."""
    quantile_figures, titles = _quantile_figures(report), quantile_bands(report)
    return str(
        render_template(
            __file__,
            "statistics_page.html",
            title=report.title,
            report=report,
            min_sites=MIN_SITES,
            significance=SIGNIFICANCE,
            outliers=_outlier_rows(report),
            sites=[row[:5] for row in report.rows],
            rules=_rule_rows(report),
            tables={title: (names, _rows_with_site(cells)) for title, (names, cells) in report.tables().items()},
            count_figures=_count_figures(report),
            numbers={
                title: [[site, *quantile_texts(each)] for site, each in by_site.items()]
                for title, by_site in report.numbers().items()
            },
            quantile_figures=quantile_figures,
            has_brightness=any(title.startswith("brightness") for title in titles),
            undrawn=len(titles) - len(quantile_figures),
        )
    )


def render_markdown(report: StatisticsReport) -> str:
    """Return the report without figures as Markdown."""
    parts = [f"# {as_text(report.title)}", as_text(report.sentence)]
    parts += [f"No statistics of {as_text(site)}: {as_text(why)}" for site, why in report.missing.items()]
    heads = ("site", "quantity", "value", "median of others", "distance")
    parts += ["## Outliers", _markdown_table(heads, _outlier_rows(report)) if report.outliers else "None."]
    heads = ("site", "images", "patients", "channels × edges", "spacing in mm")
    parts += ["## Sites", _markdown_table(heads, [row[:5] for row in report.rows])]
    for title, (names, cells) in report.tables().items():
        parts += [f"## Training images by {as_text(title)}", _markdown_table(["site", *names], _rows_with_site(cells))]
    for title, by_site in report.numbers().items():
        rows = [[site, *quantile_texts(each)] for site, each in by_site.items()]
        parts += [
            f"## {as_text(sentence(title))}",
            _markdown_table(("site", "5 %", "25 %", "median", "75 %", "95 %"), rows),
        ]
    if (scale := report.scale()) is not None:
        options = f'--mean "{[*map(_short, scale.mean)]}" --std "{[*map(_short, scale.std)]}"'
        parts += [
            "## Scale of the features",
            f"Options of `medfl run` that standardise the features by the training rows of all sites:\n\n    {options}",
        ]
    parts += ["## Suppressed numbers", _markdown_table(("site", "minimum count", "privacy"), _rule_rows(report))]
    parts += [f"- {as_text(site)}: {as_text(line)}" for site, each in report.sites.items() for line in each.suppressed]
    return "\n\n".join(parts) + "\n"


def _short(value: float) -> float:
    """Return a number with the digits that sites disclose."""
    return float(f"{value:.{MOMENT_DIGITS}g}")


def _outlier_rows(report: StatisticsReport) -> list[list[str]]:
    """Return a row for each outlier."""
    return [
        [outlier.site, outlier.quantity, outlier.value_text, outlier.median_text, deviation_text(outlier)]
        for outlier in report.outliers
    ]


def _rule_rows(report: StatisticsReport) -> list[list[str]]:
    """Return a row for each site with its minimum count and privacy guarantee."""
    return [[site, str(each.min_count), guarantee_text(each)] for site, each in report.sites.items()]


def _rows_with_site(cells: dict[str, list[str]]) -> list[list[str]]:
    """Return the rows of a table with the site's name in front."""
    return [[site, *row] for site, row in cells.items()]


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return table_lines([list(heads), *([as_text(cell) for cell in row] for row in rows)])


def _count_figures(report: StatisticsReport) -> list[CaptionedFigure]:
    """Return a figure for each table, with shares of each site's images."""
    made: list[CaptionedFigure] = []
    for title in list(report.tables())[:MAX_FIGURES]:
        parts, suppressed = dict[str, dict[str, float]](), dict[str, float]()
        for site, each in report.sites.items():
            for table in each.tables:
                if table.title == title and (total := _total(table, each.images)):
                    known = {
                        name: count for name, count in zip(table.names, table.counts, strict=False) if count is not None
                    }
                    parts[site] = {name: count / total for name, count in known.items()}
                    suppressed[site] = max(0.0, 1 - sum(known.values()) / total) if None in table.counts else 0.0
        if any(parts.values()):
            figure = bars_figure(parts, suppressed, "share of a site's training images")
            description = f"{title} at each of {len(parts)} sites, as shares of its training images"
            made.append(CaptionedFigure(svg(figure, f"counts{len(made)}", description), title))
    return made


def _total(table: DisclosedCounts, images: int | None) -> int:
    """Return the number of images of a table."""
    return images or sum(count for count in table.counts if count is not None)


def _quantile_figures(report: StatisticsReport) -> list[CaptionedFigure]:
    """Return a figure for each number, with a quantile band for each site."""
    made: list[CaptionedFigure] = []
    spans = {title: next(iter(by_site.values())).span for title, by_site in report.numbers().items()}
    for title, by_site in list(quantile_bands(report).items())[:MAX_FIGURES]:
        outlier_sites = outliers_in_figure(report, title)
        span = _brightness_span(spans) if title.startswith("brightness") else None
        figure = bands_figure(by_site, title, outlier_sites, span)
        verb = "stands" if len(outlier_sites) == 1 else "stand"
        note = f"; {', '.join(sorted(outlier_sites))} {verb} out" if outlier_sites else ""
        description = f"{title} at each of {len(by_site)} sites{note}"
        made.append(CaptionedFigure(svg(figure, f"band{len(made)}", description), title + note))
    return made


def _brightness_span(spans: dict[str, tuple[float, float] | None]) -> tuple[float, float] | None:
    """Return the range of brightness, or None if it is unknown."""
    return next((span for title, span in spans.items() if title.startswith("brightness")), None)
