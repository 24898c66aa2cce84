"""The page about described sites, which needs nothing else, the same in Markdown, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from medfl.utils.files import write_atomic
from medfl.utils.formats import as_text, sentence, table_lines
from medfl_flare.statistics.description import Counts
from medfl_flare.statistics.odd import FAR, FEWEST
from medfl_flare.statistics.pictures import bands_figure, bars_figure
from medfl_flare.statistics.view import View, bands, far_words, odd_in_picture, promise_words, quantile_words
from medfl_report.figures import svg
from medfl_report.section import render_template

PAGE, MARKDOWN, JSON = "description.html", "description.md", "description.json"
"""Files of a description."""

DRAWN = 12
"""Pictures of a kind, at most."""


@dataclass(frozen=True)
class Drawn:
    """A picture with what stands below it."""

    picture: Markup
    caption: str


def write_description(view: View, out: Path) -> Path:
    """Write the page, its Markdown and what the sites told into a folder; returns the page.

    Args:
        view: What is shown.
        out: The folder; made if it is not there. What is there under the same names is replaced.

    Raises:
        StoreError: If a file can't be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    known = {
        "sites": {site: each.model_dump(mode="json") for site, each in view.sites.items()},
        "missing": dict(view.missing),
        "odd": view.odd,
    }
    write_atomic(out / JSON, (json.dumps(known, indent=1, ensure_ascii=False) + "\n").encode())
    write_atomic(out / MARKDOWN, markdown(view).encode())
    write_atomic(out / PAGE, html(view).encode())
    return out / PAGE


def html(view: View) -> str:
    """The page."""
    drawn, titles = _bands(view), bands(view)
    return str(
        render_template(
            __file__,
            "page.html",
            title=view.title,
            view=view,
            fewest=FEWEST,
            far=FAR,
            marks=_marks(view),
            sites=[row[:5] for row in view.rows],
            rules=_rules(view),
            tables={title: (names, _with_site(cells)) for title, (names, cells) in view.tables().items()},
            bars=_bars(view),
            numbers={
                title: [[site, *quantile_words(each)] for site, each in by_site.items()]
                for title, by_site in view.numbers().items()
            },
            bands=drawn,
            bright=any(title.startswith("brightness") for title in titles),
            undrawn=len(titles) - len(drawn),
        )
    )


def markdown(view: View) -> str:
    """The same without pictures."""
    parts = [f"# {as_text(view.title)}", as_text(view.sentence)]
    parts += [f"Nothing is known of {as_text(site)}: {as_text(why)}" for site, why in view.missing.items()]
    heads = ("site", "quantity", "here", "median of sites", "how far")
    parts += ["## What stands out", _table(heads, _marks(view)) if view.marks else "Nothing."]
    heads = ("site", "images", "patients", "channels × edges", "spacing in mm")
    parts += ["## The sites", _table(heads, [row[:5] for row in view.rows])]
    for title, (names, cells) in view.tables().items():
        parts += [f"## Training images by {as_text(title)}", _table(["site", *names], _with_site(cells))]
    for title, by_site in view.numbers().items():
        rows = [[site, *quantile_words(each)] for site, each in by_site.items()]
        parts += [f"## {as_text(sentence(title))}", _table(("site", "5 %", "25 %", "median", "75 %", "95 %"), rows)]
    parts += ["## What is withheld", _table(("site", "fewest images", "privacy"), _rules(view))]
    parts += [f"- {as_text(site)}: {as_text(line)}" for site, each in view.sites.items() for line in each.withheld]
    return "\n\n".join(parts) + "\n"


def _marks(view: View) -> list[list[str]]:
    return [[mark.site, mark.quantity, mark.here, mark.others, far_words(mark)] for mark in view.marks]


def _rules(view: View) -> list[list[str]]:
    return [[site, str(each.min_count), promise_words(each)] for site, each in view.sites.items()]


def _with_site(cells: dict[str, list[str]]) -> list[list[str]]:
    return [[site, *row] for site, row in cells.items()]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table_lines([list(heads), *([as_text(cell) for cell in row] for row in rows)])


def _bars(view: View) -> list[Drawn]:
    """A picture for each table, as shares of each site's images."""
    made: list[Drawn] = []
    for title in list(view.tables())[:DRAWN]:
        parts, withheld = dict[str, dict[str, float]](), dict[str, float]()
        for site, each in view.sites.items():
            for table in each.tables:
                if table.title == title and (total := _total(table, each.images)):
                    known = {
                        name: count for name, count in zip(table.names, table.counts, strict=False) if count is not None
                    }
                    parts[site] = {name: count / total for name, count in known.items()}
                    withheld[site] = max(0.0, 1 - sum(known.values()) / total) if None in table.counts else 0.0
        if any(parts.values()):
            figure = bars_figure(parts, withheld, "share of a site's training images")
            description = f"{title} at each of {len(parts)} sites, as shares of its training images"
            made.append(Drawn(svg(figure, f"counts{len(made)}", description), title))
    return made


def _total(table: Counts, images: int | None) -> int:
    return images or sum(count for count in table.counts if count is not None)


def _bands(view: View) -> list[Drawn]:
    made: list[Drawn] = []
    spans = {title: next(iter(by_site.values())).span for title, by_site in view.numbers().items()}
    for title, by_site in list(bands(view).items())[:DRAWN]:
        odd = odd_in_picture(view, title)
        figure = bands_figure(by_site, title, odd, None if not title.startswith("brightness") else _span(spans))
        note = f"; {', '.join(sorted(odd))} {'stands' if len(odd) == 1 else 'stand'} out" if odd else ""
        description = f"{title} at each of {len(by_site)} sites{note}"
        made.append(Drawn(svg(figure, f"band{len(made)}", description), title + note))
    return made


def _span(spans: dict[str, tuple[float, float] | None]) -> tuple[float, float] | None:
    return next((span for title, span in spans.items() if title.startswith("brightness")), None)
