"""Which sites stand out: each quantity of a site against the median over sites.

A site is marked where its quantity is farther from the median over the sites than `FAR` robust deviations (1.4826 times
the median absolute deviation; Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993), to which what chance does
to that site's own number is added, and where the difference also matters (`MATTERS`): with few sites, or sites that are
nearly equal, the median absolute deviation is next to nothing. Among fewer than `FEWEST` sites none can be odd.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from medfl_flare.statistics.description import Counts, Description, Numbers
from medfl_flare.statistics.telling import BINS

FAR = 3.5
FEWEST = 3
MAD = 1.4826
"""Times the median absolute deviation is the standard deviation of normal numbers."""

MATTERS = {"times": 4.0, "share": 0.1, "spread": 0.5, "range": 0.02}
"""What a difference must be to be told: this many times as many images; this share of the images; this part of the
distance between the quartiles within sites, and of the range of a number if all know that."""

QUARTILES, MIDDLE = (1, 3), 2
"""Their places among the quantiles."""


@dataclass(frozen=True)
class Point:
    """A quantity of a site.

    Attributes:
        value: Of it.
        error: Its standard error, >= 0.
        matters: A smaller difference is of no interest, >= 0.
    """

    value: float
    error: float
    matters: float


@dataclass(frozen=True)
class Mark:
    """Why a site stands out.

    Attributes:
        site: Its name.
        quantity: Which number.
        here: Its value, in words.
        others: The median of the sites, in words.
        far: How many robust deviations it is away; infinity for what is no number.
    """

    site: str
    quantity: str
    here: str
    others: str
    far: float


def marks(sites: Mapping[str, Description]) -> list[Mark]:
    """What stands out, the farthest first within each site, sites by name."""
    if len(sites) < FEWEST:
        return []
    made = [*_unlike(sites), *_sizes(sites), *_shares(sites), *_numbers(sites)]
    return sorted(made, key=lambda mark: (mark.site, -mark.far, mark.quantity))


def far_points(points: Mapping[str, Point]) -> dict[str, tuple[float, float]]:
    """The sites that are far from the others: how many robust deviations, and the median of all.

    Args:
        points: Site to its quantity; sites that don't tell it are not in it.
    """
    if len(points) < FEWEST:
        return {}
    middle = median(point.value for point in points.values())
    spread = MAD * median(abs(point.value - middle) for point in points.values())
    usual = median(point.error for point in points.values())
    far = {}
    for site, point in points.items():
        distance, scale = abs(point.value - middle), math.hypot(spread, point.error, usual)
        if distance > FAR * scale and distance >= point.matters and distance > 0:
            far[site] = (distance / scale if scale else math.inf, middle)
    return far


def _unlike(sites: Mapping[str, Description]) -> Iterator[Mark]:
    """What most sites have and one has not: shape, spacing, classes, what is learned."""
    facts: dict[str, Callable[[Description], Any]] = {
        "what is learned": lambda each: each.objective,
        "names of the classes": lambda each: tuple(each.classes),
        "shape": lambda each: None if each.shape is None else tuple(each.shape),
        "spacing in mm": lambda each: None if each.spacing is None else tuple(each.spacing),
    }
    for quantity, read in facts.items():
        values = {site: read(each) for site, each in sites.items() if read(each) is not None}
        if len(values) < FEWEST:
            continue
        common, count = Counter(values.values()).most_common(1)[0]
        for site, value in values.items():
            if value != common and 2 * count > len(values):
                yield Mark(site, quantity, _joined(value), _joined(common), math.inf)


def _sizes(sites: Mapping[str, Description]) -> Iterator[Mark]:
    points = {
        site: Point(math.log(each.images), 0.0 if each.promise is None else each.promise.deviation / each.images, 0.0)
        for site, each in sites.items()
        if each.images
    }
    points = {site: Point(point.value, point.error, math.log(MATTERS["times"])) for site, point in points.items()}
    for site, (far, middle) in far_points(points).items():
        yield Mark(site, "training images", f"{sites[site].images}", f"{math.exp(middle):.0f}", far)


def _shares(sites: Mapping[str, Description]) -> Iterator[Mark]:
    """Of each table the value whose share is farthest from the others'."""
    for title, tables in _by_title(sites, lambda each: each.tables).items():
        farthest: dict[str, Mark] = {}
        for name in dict.fromkeys(name for table in tables.values() for name in table.names):
            points = {site: _share(table, name, sites[site]) for site, table in tables.items()}
            known = {site: point for site, point in points.items() if point is not None}
            for site, (far, middle) in far_points(known).items():
                mark = Mark(site, f"{title}: {name}", f"{known[site].value:.1%}", f"{middle:.1%}", far)
                if site not in farthest or farthest[site].far < far:
                    farthest[site] = mark
        yield from farthest.values()


def _share(table: Counts, name: str, about: Description) -> Point | None:
    count = dict(zip(table.names, table.counts, strict=False)).get(name)
    known = [count for count in table.counts if count is not None]
    total = about.images if about.images is not None else sum(known) if len(known) == len(table.counts) else None
    if count is None or not total:
        return None
    smoothed = (min(count, total) + 1) / (total + 2)  # noise can make a part larger than the whole
    noise = 0.0 if about.promise is None else about.promise.deviation / total
    return Point(
        min(1.0, count / total), math.hypot(math.sqrt(smoothed * (1 - smoothed) / total), noise), MATTERS["share"]
    )


def _numbers(sites: Mapping[str, Description]) -> Iterator[Mark]:
    """The median over a site's images of each number."""
    for title, numbers in _by_title(sites, lambda each: each.numbers).items():
        told_spreads = [spread for each in numbers.values() if (spread := _spread(each)) is not None]
        usual = median(told_spreads) if told_spreads else 0.0
        points = {}
        for site, each in numbers.items():
            middle, spread, images = each.quantiles[MIDDLE], _spread(each), sites[site].images
            if middle is None:
                continue
            width = each.span[1] - each.span[0] if each.span else 0.0
            matters = max(MATTERS["spread"] * usual, MATTERS["range"] * width, 1e-9)
            count = images or 2 * sites[site].min_count
            error = 0.93 * (usual if spread is None else spread) / math.sqrt(count)  # of a normal sample's median
            if sites[site].promise is not None:
                drowned = 2 * math.sqrt(BINS / 2) * sites[site].promise.deviation / count  # type: ignore[union-attr]
                error = math.hypot(error, usual * drowned, width / BINS)
            points[site] = Point(middle, error, matters)
        for site, (far, middle) in far_points(points).items():
            yield Mark(site, title, f"{points[site].value:.4g}", f"{middle:.4g}", far)


def _spread(numbers: Numbers) -> float | None:
    low, high = (numbers.quantiles[place] for place in QUARTILES)
    return None if low is None or high is None else high - low


def _by_title(sites: Mapping[str, Description], read: Callable[[Description], Any]) -> dict[str, dict[str, Any]]:
    """Title to site to what it tells under it."""
    titles: dict[str, dict[str, Any]] = {}
    for site, each in sites.items():
        for entry in read(each):
            titles.setdefault(entry.title, {})[site] = entry
    return titles


def _joined(value: object) -> str:
    """A fact in words: edges as ``3 x 28 x 28``, names with commas."""
    if not isinstance(value, tuple):
        return str(value)
    if all(isinstance(edge, int | float) for edge in value):
        return " x ".join(f"{edge:g}" for edge in value)
    return ", ".join(map(str, value))
