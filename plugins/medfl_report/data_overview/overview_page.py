"""The overview of a data set as one self-contained HTML page that only its owner can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from medfl.data.datalists import SPLITS
from medfl.types import GLOBAL
from medfl.utils.files import private_files, write_atomic
from medfl.utils.formats import count, number, p_value
from medfl.utils.text import names_and_more
from medfl_report.data_overview import group_tests, measurements, mirrored_images, near_duplicates
from medfl_report.data_overview.cases import DataSetImages
from medfl_report.data_overview.group_tests import GroupDifference
from medfl_report.data_overview.overview import MAX_NAMES, DataOverview, RatedPair, superiority_text
from medfl_report.data_overview.pictures import MAX_CURVES, Picture, choose_cases, draw_picture, histogram_figure
from medfl_report.figures import svg
from medfl_report.section import render_template

PAGE_NAME = "look.html"
"""Default file name of the page, in the folder of the data set."""

MAX_SITES, MAX_FAULTS, MAX_SHOWN_PAIRS = 30, 16, 12
"""Maximum numbers of sites with pictures, of images with one fault (or mirrored ones), and of pairs of each list."""


@dataclass(frozen=True)
class SitePictures:
    """Pictures of a site.

    Attributes:
        site: Name of the site.
        summary: Numbers of images and patients in words.
        difference: How its images differ; empty if they do not.
        pictures: Pictures of some training images.
    """

    site: str
    summary: str
    difference: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class ShownPair:
    """Two near-duplicates side by side.

    Attributes:
        first: Picture of one image.
        second: Picture of the other image.
        text: Kind and correlation in words.
    """

    first: Picture
    second: Picture
    text: str


@dataclass(frozen=True)
class FaultyImages:
    """Images with one fault.

    Attributes:
        title: Number of images and fault in words.
        images: Pictures of the first images, with site and split in the caption.
        hidden: Number of images without a picture.
    """

    title: str
    images: tuple[Picture, ...]
    hidden: int


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        caption: Title.
        heads: Headings of the columns; the first column contains names.
        rows: Cells of the rows.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def write_overview(overview: DataOverview, path: Path, most: int) -> None:
    """Write the page with permissions for its owner only (mode 0600).

    Args:
        overview: Findings.
        path: File to write; a file of this name is replaced.
        most: Maximum number of pictures of each site.

    Raises:
        StoreError: If the file can't be written.
    """
    content = render_overview(overview, most).encode()
    with private_files():
        write_atomic(path, content)


def render_overview(overview: DataOverview, most: int) -> str:
    """Return the page as HTML.

    Args:
        overview: Findings.
        most: Maximum number of pictures of each site.
    """
    data = overview.data
    plain = [each for each in overview.pairs if not each.pair.mirrored]
    mirrored = [each for each in overview.pairs if each.pair.mirrored]
    return str(
        render_template(
            __file__,
            "overview_page.html",
            title=f"{data.name}: look before training",
            sentence=_sentence(overview),
            findings=overview.findings(),
            sites=_site_pictures(overview, most),
            hidden_sites=max(0, len(data.sites) - MAX_SITES),
            has_masks=any(site.masks is not None for site in data.sites.values()),
            faults=_faulty_images(overview),
            pairs=_shown_pairs(overview, plain),
            pair_count=len(plain),
            mirrored=_shown_pairs(overview, mirrored),
            mirrored_count=len(mirrored),
            mirrored_images=_mirrored_images(overview),
            hidden_mirrored=max(0, len(overview.mirrored) - MAX_FAULTS),
            site_table=_difference_table(overview, overview.site_differences, "site"),
            scanner_table=_difference_table(overview, overview.scanner_differences, "scanner"),
            site_histograms=_histograms(overview, "site"),
            scanner_histograms=_histograms(overview, "scanner") if data.scanner_column else None,
            scanner_column=data.scanner_column,
            max_curves=MAX_CURVES,
            facts=_facts_table(overview),
            targets=_target_table(data),
            group_tests=group_tests,
            near_duplicates=near_duplicates,
            mirroring=mirrored_images,
            measurements=measurements,
        )
    )


def _sentence(overview: DataOverview) -> str:
    splits = Counter(case.split for case in overview.data.cases)
    parts = ", ".join(f"{number(splits[split])} {split}" for split in SPLITS if splits[split])
    sites = count(sum(site != GLOBAL for site in overview.data.sites), "site")
    return f"{number(len(overview.data.cases))} images ({parts}) of {sites}."


def _site_pictures(overview: DataOverview, most: int) -> list[SitePictures]:
    data, edges = overview.data, overview.measured.edges
    span = (float(edges[0]), float(edges[-1]))
    chosen = choose_cases(data, most)
    shown = []
    for site in [name for name in data.sites if name != GLOBAL][:MAX_SITES]:
        cases = [case for case in data.cases if case.site == site]
        patients = len({case.patient for case in cases})
        summary = f"{number(len(cases))} images"
        if patients < len(cases):
            summary += f" of {number(patients)} patients"
        pictures = tuple(draw_picture(data, data.cases[place], span) for place in chosen.get(site, []))
        shown.append(SitePictures(site, summary, overview.site_text(site), pictures))
    return shown


def _picture(overview: DataOverview, place: int) -> Picture:
    edges = overview.measured.edges
    return draw_picture(overview.data, overview.data.cases[place], (float(edges[0]), float(edges[-1])))


def _faulty_images(overview: DataOverview) -> list[FaultyImages]:
    groups = []
    for key, words in measurements.FAULTS.items():
        places = overview.places_with(key)
        if places:
            images = [_placed_picture(overview, place) for place in places[:MAX_FAULTS]]
            title = count(len(places), f"{words} image")
            groups.append(FaultyImages(title, tuple(images), len(places) - len(images)))
    return groups


def _mirrored_images(overview: DataOverview) -> list[Picture]:
    return [_placed_picture(overview, each.place, each.directions) for each in overview.mirrored[:MAX_FAULTS]]


def _placed_picture(overview: DataOverview, place: int, *notes: str) -> Picture:
    """Return the picture of an image whose caption also has its site, its split and some notes."""
    case, picture = overview.data.cases[place], _picture(overview, place)
    return replace(picture, caption="; ".join([picture.caption, f"{case.site}, {case.split}", *notes]))


def _shown_pairs(overview: DataOverview, pairs: Sequence[RatedPair]) -> list[ShownPair]:
    shown = []
    for each in pairs[:MAX_SHOWN_PAIRS]:
        pair = each.pair
        places = [f"{case.site}, {case.split}" for case in (overview.data.cases[n] for n in (pair.first, pair.second))]
        where = places[0] if places[0] == places[1] else " and ".join(places)
        turned = f"; mirrored {pair.mirrored}" if pair.mirrored else ""
        text = f"{each.kind}; {where}; similarity {min(pair.correlation, 1.0):.3f}{turned}"
        shown.append(ShownPair(_picture(overview, pair.first), _picture(overview, pair.second), text))
    return shown


def _difference_table(overview: DataOverview, differences: Sequence[GroupDifference], what: str) -> Table | None:
    if not differences:
        return None
    rows = []
    for each in differences:
        feature = overview.measured.features[each.feature]
        others = f"{len(each.others)} of {each.compared}"
        rows.append(
            (
                each.group,
                feature.larger if each.larger else feature.smaller,
                superiority_text(each),
                others,
                f"{each.median:.3f}",
                f"{each.other_median:.3f}",
                p_value(each.p),
                feature.title,
            )
        )
    heads = (what, "its images", "how often", f"other {what}s", "median here", "median there", "adjusted p", "measured")
    return Table(f"{what.capitalize()}s whose images differ from those of most other {what}s", heads, tuple(rows))


def _histograms(overview: DataOverview, kind: str) -> Markup | None:
    """Return the histograms of the largest groups of training images, each image with the same weight."""
    cases, training = overview.data.cases, overview.training
    groups: dict[str, list[int]] = {}
    for place in training:
        groups.setdefault(cases[place].site if kind == "site" else cases[place].scanner, []).append(place)
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:MAX_CURVES]
    shares = {name: overview.measured.histograms[groups[name]].mean(axis=0) for name in sorted(largest)}
    figure = histogram_figure(shares, overview.measured.edges)
    return svg(figure, f"histogram{kind}", f"Histograms of pixel values by {kind}", record=False)


def _facts_table(overview: DataOverview) -> Table:
    data = overview.data
    rows = []
    for name, site in data.sites.items():
        cases = [case for case in data.cases if case.site == name]
        splits = Counter(case.split for case in cases)
        scanners = names_and_more(overview.scanners_of(name), MAX_NAMES) if data.scanner_column else ""
        counts = (number(splits[split]) for split in SPLITS)
        patients = number(len({case.patient for case in cases}))
        rows.append((name, *counts, patients, site.size, site.spacing, site.reading, scanners))
    heads = ("site", *SPLITS, "patients", "pixels", "spacing", "scale of grey values", "scanners")
    kept = [n for n in range(len(heads)) if n < 6 or any(row[n] for row in rows)]
    return Table(
        "Sites", tuple(heads[n] for n in kept), tuple(tuple(row[n] or "not known" for n in kept) for row in rows)
    )


def _target_table(data: DataSetImages) -> Table | None:
    names = list(dict.fromkeys(name for site in data.sites.values() for name in site.counts))
    if not names:
        return None
    rows = tuple((site, *(each.counts.get(name, "") for name in names)) for site, each in data.sites.items())
    return Table("Training images by target", ("site", *names), rows)
