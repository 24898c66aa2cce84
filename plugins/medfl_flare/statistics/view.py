"""What a page says of described sites, as rows and words; the page and its Markdown show the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medfl.utils.formats import MISSING, count, listed, number
from medfl_flare.statistics.description import Counts, Description, Numbers
from medfl_flare.statistics.odd import FEWEST, Mark, marks

WITHHELD = "withheld"

BRIGHTNESS = re.compile(r"brightness at (\d+)%(?:, (.*))?")
"""Title of a quantile of each image's pixels: its level and channel."""


@dataclass(frozen=True)
class View:
    """What is shown.

    Attributes:
        sites: Name to what a site tells, by name.
        missing: Site to why it tells nothing.
        marks: What stands out.
        source: Where the sites are, in words.
    """

    sites: Mapping[str, Description]
    missing: Mapping[str, str]
    marks: Sequence[Mark]
    source: str

    @property
    def odd(self) -> list[str]:
        """The sites that stand out."""
        return list(dict.fromkeys(mark.site for mark in self.marks))

    @property
    def title(self) -> str:
        """The heading."""
        if len(self.sites) < FEWEST:
            return f"{count(len(self.sites), 'site')} before training"
        if not self.odd:
            return f"No site stands out among {len(self.sites)}"
        if 2 * len(self.odd) > len(self.sites):
            return f"The {len(self.sites)} sites differ from each other"
        verb = "stands" if len(self.odd) == 1 else "stand"
        return f"{len(self.odd)} of {len(self.sites)} sites {verb} out: {listed(self.odd)}"

    @property
    def sentence(self) -> str:
        """What is below the heading."""
        images = [each.images for each in self.sites.values() if each.images is not None]
        total = f"{number(sum(images))} training images at {count(len(images), 'site')} that tell their number. "
        rest = "" if len(self.sites) >= FEWEST else "Among fewer than three sites none can be called odd. "
        return total + rest + "Validation and test images were not opened."

    @property
    def rows(self) -> list[list[str]]:
        """A row for each site: name, images, patients, shape, spacing, privacy, fewest."""
        return [
            [
                site,
                WITHHELD if each.images is None else number(each.images),
                _patients(each),
                MISSING if each.shape is None else " × ".join(map(str, each.shape)),
                MISSING if each.spacing is None else " × ".join(f"{edge:g}" for edge in each.spacing),
                promise_words(each),
                str(each.min_count),
            ]
            for site, each in self.sites.items()
        ]

    def tables(self) -> dict[str, tuple[list[str], dict[str, list[str]]]]:
        """Title of a table to the names of its cells and, for each site that tells it, the cells in words."""
        titles: dict[str, dict[str, Counts]] = {}
        for site, each in self.sites.items():
            for table in each.tables:
                titles.setdefault(table.title, {})[site] = table
        made = {}
        for title, by_site in titles.items():
            names = list(dict.fromkeys(name for table in by_site.values() for name in table.names))
            cells = {
                site: [_cell(dict(zip(table.names, table.counts, strict=False)), name) for name in names]
                for site, table in by_site.items()
            }
            made[title] = (names, cells)
        return made

    def numbers(self) -> dict[str, dict[str, Numbers]]:
        """Title of a number to what each site tells of it."""
        titles: dict[str, dict[str, Numbers]] = {}
        for site, each in self.sites.items():
            for numbers in each.numbers:
                titles.setdefault(numbers.title, {})[site] = numbers
        return titles

    def odd_in(self, title: str) -> set[str]:
        """The sites that stand out by a quantity."""
        return {mark.site for mark in self.marks if mark.quantity == title or mark.quantity.startswith(f"{title}: ")}


def view_of(sites: Mapping[str, Description], missing: Mapping[str, str], source: str) -> View:
    """A view of what sites tell, with what stands out."""
    ordered = dict(sorted(sites.items()))
    return View(ordered, dict(sorted(missing.items())), marks(ordered), source)


def promise_words(each: Description) -> str:
    """What noise promises, in words."""
    if each.promise is None:
        return "none: exact numbers"
    promise = each.promise
    return (
        f"epsilon {promise.epsilon:g}, delta {promise.delta:g}, unit one training image, adjacency "
        f"{promise.adjacency}; noise of {promise.deviation:g} in each count"
    )


def far_words(mark: Mark) -> str:
    """How far a site is from the others."""
    return "unlike most sites" if mark.far == float("inf") else f"{mark.far:.1f} robust deviations"


def quantile_words(numbers: Numbers) -> list[str]:
    """The five quantiles, in words."""
    return [WITHHELD if value is None else f"{value:.4g}" for value in numbers.quantiles]


def bands(view: View) -> dict[str, dict[str, list[float | None]]]:
    """Title of a picture to site to five quantiles: of brightness those of the typical image, channel by channel."""
    made: dict[str, dict[str, list[float | None]]] = {}
    for title, by_site in view.numbers().items():
        match = BRIGHTNESS.fullmatch(title)
        for site, numbers in by_site.items():
            if match is None:
                made.setdefault(title, {})[site] = list(numbers.quantiles)
                continue
            of_image = made.setdefault(f"brightness{f', {match[2]}' if match[2] else ''}", {})
            of_image.setdefault(site, []).append(numbers.quantiles[2])
    counted = view.tables()  # a column of noughts and ones has no band to look at
    return {
        title: by_site
        for title, by_site in made.items()
        if title not in counted and any(map(_is_known, by_site.values()))
    }


def odd_in_picture(view: View, title: str) -> set[str]:
    """The sites that stand out in a picture of `bands`."""
    quantities = {mark.quantity: BRIGHTNESS.fullmatch(mark.quantity) for mark in view.marks}
    shown = {
        quantity
        for quantity, match in quantities.items()
        if match is not None and title == f"brightness{f', {match[2]}' if match[2] else ''}"
    }
    return view.odd_in(title) | {mark.site for mark in view.marks if mark.quantity in shown}


def _is_known(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _patients(each: Description) -> str:
    if each.patients is not None:
        return number(each.patients)
    return WITHHELD if each.images is None else MISSING


def _cell(counts: Mapping[str, int | None], name: str) -> str:
    if name not in counts:
        return MISSING
    value = counts[name]
    return WITHHELD if value is None else number(value)
