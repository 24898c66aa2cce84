"""Findings about a data set before training: faults, similar or mirrored images, and groups that differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from medfl.utils.formats import count, join_words
from medfl.utils.text import names_and_more
from medfl_report.data_overview.cases import UNKNOWN, DataSetImages, ImageCase
from medfl_report.data_overview.group_tests import GroupDifference, compare_groups
from medfl_report.data_overview.measurements import FAULTS, ImageMeasurements, measure_images
from medfl_report.data_overview.mirrored_images import MirroredImage, find_mirrored
from medfl_report.data_overview.near_duplicates import MAX_PAIRS, SimilarPair, find_similar

PAIR_KINDS = ("with different targets", "in training and test", "of different patients", "of one patient")
"""Kinds of near-duplicates, the most serious first."""

TONE_FEATURES = (2, 3, 4)
"""Indices of the features for dark parts, middle tones and bright parts, which a brighter image mostly shares."""

MAX_NAMES = 4
"""Maximum number of names of sites in a sentence."""


@dataclass(frozen=True)
class RatedPair:
    """Two near-duplicates and the severity of their similarity.

    Attributes:
        pair: Positions and correlation.
        kind: Severity, one of `PAIR_KINDS`.
    """

    pair: SimilarPair
    kind: str


@dataclass(frozen=True, eq=False)
class DataOverview:
    """Findings about a data set.

    Attributes:
        data: Images of the data set.
        measured: Measurements of all images.
        pairs: Near-duplicates among the images without faults, the most serious and most similar first.
        mirrored: Images without faults that are likely mirrored.
        site_differences: Features in which training images of a site differ from those of most other sites.
        scanner_differences: The same for scanners.
    """

    data: DataSetImages
    measured: ImageMeasurements
    pairs: tuple[RatedPair, ...]
    mirrored: tuple[MirroredImage, ...]
    site_differences: tuple[GroupDifference, ...]
    scanner_differences: tuple[GroupDifference, ...]

    @property
    def training(self) -> list[int]:
        """Positions of the training images."""
        return [place for place, case in enumerate(self.data.cases) if case.split == "training"]

    @property
    def patients(self) -> int:
        """Number of patients; an image of an unknown patient counts as a patient."""
        return len({case.patient for case in self.data.cases})

    def places_with(self, fault: str) -> list[int]:
        """Return the positions of the images with a fault, a key of `FAULTS`."""
        return [place for place, keys in self.measured.faults.items() if fault in keys]

    def findings(self) -> list[str]:
        """Return the findings as sentences; empty if there is nothing to check."""
        lines = []
        for key, text in FAULTS.items():
            if places := self.places_with(key):
                sites = {self.data.cases[place].site for place in places}
                where = f", all at {next(iter(sites))}" if len(sites) == 1 < len(self.data.sites) else ""
                lines.append(f"{count(len(places), f'{text} image')}{where}")
        for mirrored in (False, True):
            pairs = [each for each in self.pairs if bool(each.pair.mirrored) == mirrored]
            if pairs:
                kinds = Counter(each.kind for each in pairs)
                parts = [f"{kinds[kind]} {kind}" for kind in PAIR_KINDS if kinds[kind]]
                what = "pair of mirrored near-duplicates" if mirrored else "pair of near-duplicates"
                most = " or more" if len(self.pairs) >= MAX_PAIRS else ""
                plural = what.replace("pair", "pairs", 1)
                lines.append(f"{count(len(pairs), what, plural)}{most}: {join_words(parts)}")
        if self.mirrored:
            turned = Counter(each.directions for each in self.mirrored)
            parts = [f"{number} {directions}" for directions, number in turned.items()]
            lines.append(f"{count(len(self.mirrored), 'image')} likely mirrored: {join_words(parts)}")
        for site in self.data.sites:
            if text := self.site_text(site):
                lines.append(f"{site} differs: {text}")
        lines += [f"scanner {name} differs: {text}" for name, text in self.scanner_texts().items()]
        return lines

    def site_text(self, site: str) -> str:
        """Return how the images of a site differ and what may be the reason; empty if nothing differs."""
        texts = []
        own = [each for each in self.site_differences if each.group == site]
        if own:
            texts.append(_differences_text(own, self.measured, "site"))
            if self.data.scanner_column:
                texts.append(self._scanner_note(site))
        facts = {"image size": "size", "spacing": "spacing", "scale of grey values": "reading"}
        for title, attribute in facts.items():
            values = Counter(getattr(each, attribute) for each in self.data.sites.values())
            usual, value = values.most_common(1)[0][0], getattr(self.data.sites[site], attribute)
            if len(values) > 1 and value != usual:
                texts.append(f"{title} {value or 'not stated'} instead of {usual or 'not stated'}")
        return "; ".join(texts)

    def scanner_texts(self) -> dict[str, str]:
        """Return how the images of a scanner differ, for scanners that are not the same groups as the sites."""
        groups: dict[str, list[GroupDifference]] = {}
        for each in self.scanner_differences:
            groups.setdefault(each.group, []).append(each)
        return {name: _differences_text(some, self.measured, "scanner") for name, some in groups.items()}

    def scanners_of(self, site: str) -> list[str]:
        """Return the scanners of a site's images, the most frequent first."""
        return [name for name, _ in Counter(c.scanner for c in self.data.cases if c.site == site).most_common()]

    def _scanner_note(self, site: str) -> str:
        own = self.scanners_of(site)
        elsewhere = {case.scanner for case in self.data.cases if case.site != site}
        alone = [name for name in own if name not in elsewhere and name != UNKNOWN]
        if alone == own:
            return f"all images come from {names_and_more(own, MAX_NAMES)}, which no other site has"
        if alone:
            return f"{names_and_more(alone, MAX_NAMES)} is at no other site"
        return f"its scanners ({names_and_more(own, MAX_NAMES)}) are also at other sites"


def look_at(data: DataSetImages) -> DataOverview:
    """Measure the images of a data set, find faulty, similar and mirrored images, and compare sites and scanners.

    Comparisons use training images only. Faults, near-duplicates and mirrored images are found in all splits.
    """
    measured = measure_images(data)
    thumbnails = measured.thumbnails.copy()
    thumbnails[list(measured.faults)] = 0.0  # overexposed or nearly blank images resemble each other
    pairs = [RatedPair(pair, _kind(data.cases, pair)) for pair in find_similar(thumbnails)]
    pairs.sort(key=lambda each: (PAIR_KINDS.index(each.kind), -each.pair.correlation))
    training = [place for place, case in enumerate(data.cases) if case.split == "training"]
    cases = [data.cases[place] for place in training]
    patients, values = [case.patient for case in cases], measured.values[training]
    by_site = compare_groups(values, [case.site for case in cases], patients)
    by_scanner: list[GroupDifference] = []
    scanners = [case.scanner for case in cases]
    if data.scanner_column and not _same_groups([case.site for case in cases], scanners):
        by_scanner = compare_groups(values, scanners, patients)
    mirrored = tuple(find_mirrored(thumbnails))
    return DataOverview(data, measured, tuple(pairs), mirrored, tuple(by_site), tuple(by_scanner))


def _same_groups(first: list[str], second: list[str]) -> bool:
    """Return True if two groupings of the same images have the same groups."""
    return len(set(zip(first, second, strict=True))) == len(set(first)) == len(set(second))


def _kind(cases: tuple[ImageCase, ...], pair: SimilarPair) -> str:
    first, second = cases[pair.first], cases[pair.second]
    if first.target != second.target:
        return PAIR_KINDS[0]
    if (first.split == "test") != (second.split == "test"):
        return PAIR_KINDS[1]
    return PAIR_KINDS[3] if first.patient == second.patient else PAIR_KINDS[2]


def _differences_text(differences: list[GroupDifference], measured: ImageMeasurements, what: str) -> str:
    """Return the differences of one group as a phrase, for example ``brighter than at all 3 other sites (...)``."""
    parts = []
    overall = {each.larger for each in differences if each.feature == 0}
    for each in differences:
        if each.feature in TONE_FEATURES and each.larger in overall:
            continue
        feature = measured.features[each.feature]
        parts.append(f"{feature.larger if each.larger else feature.smaller} ({superiority_text(each)})")
    others = {other for each in differences for other in each.others}
    compared = max(each.compared for each in differences)
    if compared == 1:
        whom = f"{what} {next(iter(others))}"
    elif all(len(each.others) == each.compared for each in differences):
        whom = f"both other {what}s" if compared == 2 else f"all {compared} other {what}s"
    else:
        whom = f"most of the {compared} other {what}s"
    return f"{', '.join(parts)}, compared with {whom}"


def superiority_text(difference: GroupDifference) -> str:
    """Return how often the difference holds, for example ``in 93 of 100 pairs``."""
    return f"in {min(99, int(np.floor(100 * difference.superiority)))} of 100 pairs"
