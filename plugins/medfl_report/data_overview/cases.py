"""Images of a prepared or partitioned data set, with the entries of the data list that the overview shows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from medfl.data.arrays import CHUNK_BYTES, channels_of, open_array
from medfl.data.datalists import DATALIST_FILE, SPLITS, Datalist, entry_text, read_datalist
from medfl.data.readers.image_reading import IMAGE_READING_KEY
from medfl.data.sites import image_shape, output_names, site_names
from medfl.data.targets import MASK_STRUCTURES_KEY, read_integers, record_targets
from medfl.errors import DataError, did_you_mean
from medfl.objectives import Objective
from medfl.records.datalist import CaseRecord
from medfl.types import GLOBAL
from medfl.utils.formats import join_words
from medfl.utils.text import inert_name

SCANNER_COLUMNS = ("scanner", "device", "manufacturer", "model", "centre", "center")
"""Columns of a data list that are taken as the scanner if the user names none; the first one that exists is used."""

MAX_SCANNERS = 40
"""Maximum number of different values of a scanner column. A column with more values may identify patients."""

UNKNOWN = "not known"
"""Name of the group of images without an entry in the scanner column."""

MAX_SITES = 400
"""Maximum number of different values of the entry ``site`` of a prepared data set."""

MAX_NAME = 60
"""Maximum number of characters of a name on the page."""


@dataclass(frozen=True)
class ImageCase:
    """An image of the data set.

    Attributes:
        site: Name of the site.
        split: One of `medfl.data.datalists.SPLITS`.
        row: Row of the image in the array of the site.
        patient: Number of the patient, unique in the data set. It does not reveal who the patient is.
        scanner: Content of the scanner column; empty without a scanner column.
        target: Target in words: class, findings or numbers; empty if the target is a mask.
    """

    site: str
    split: str
    row: int
    patient: int
    scanner: str
    target: str


@dataclass(frozen=True, eq=False)
class SiteImages:
    """Images and facts of one site.

    Attributes:
        images: Array of the images, (N, ...).
        masks: Array of the masks, (N, ...), uint8; None without masks.
        size: Channels and spatial size of an image in words.
        spacing: Spacing in words; empty if unknown.
        reading: Scale of the grey values in words, such as a window of CT; empty if the data list does not state it.
        counts: Maps each row of the table of targets to its text: counts of a class, of a finding, of images with a
            structure, or the range of a number.
    """

    images: np.ndarray
    masks: np.ndarray | None
    size: str
    spacing: str
    reading: str
    counts: dict[str, str]


@dataclass(frozen=True, eq=False)
class DataSetImages:
    """All images of a data set.

    Attributes:
        name: Name of the data set.
        scanner_column: Name of the scanner column; empty without one.
        cases: All images, training images first within each site.
        sites: Maps each site to its arrays and facts.
    """

    name: str
    scanner_column: str
    cases: tuple[ImageCase, ...]
    sites: dict[str, SiteImages]

    def image(self, case: ImageCase) -> np.ndarray:
        """Return the pixels of an image, (*spatial) or (*spatial, C), in the type of the array."""
        return np.asarray(self.sites[case.site].images[case.row])

    def mask(self, case: ImageCase) -> np.ndarray | None:
        """Return the mask of an image as its array stores it; None without masks."""
        masks = self.sites[case.site].masks
        return None if masks is None else np.asarray(masks[case.row])

    def batches(self) -> Iterator[np.ndarray]:
        """Yield the images in the order of `cases`, in batches of limited memory; see `unit_pixels`."""
        for site, group in itertools.groupby(self.cases, key=lambda case: case.site):
            images, rows = self.sites[site].images, [case.row for case in group]
            step = max(1, CHUNK_BYTES // max(1, 4 * int(np.prod(images.shape[1:]))))
            for first in range(0, len(rows), step):
                some = images[rows[first : first + step]]
                yield unit_pixels(some, images)


def unit_pixels(pixels: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return images (B, *spatial, C), float32, with integers scaled to [0, 1].

    Args:
        pixels: Images, (B, ...).
        images: Array that contains them; its shape decides whether the last axis is the channel axis.
    """
    top = np.float32(np.iinfo(images.dtype).max) if images.dtype.kind == "u" else np.float32(1)
    with np.errstate(over="ignore"):
        values = pixels.astype(np.float32) / top
    return values[..., np.newaxis] if channels_of(images.shape) is None else values


def read_images(folder: Path, scanner_column: str | None = None) -> DataSetImages:
    """Read the lists of a prepared data set, of a partitioned one, or of one site, and open their arrays.

    The images of a prepared data set are grouped by the entry ``site`` of their records.

    Args:
        folder: Folder with a data list, or with a folder for each site.
        scanner_column: Column of the data list with the scanner; None takes the first one of `SCANNER_COLUMNS` with at
            most `MAX_SCANNERS` values.

    Raises:
        DataError: If a list or an array is missing or wrong, the data are tables, or the column is missing or has more
            than `MAX_SCANNERS` values.
    """
    if (folder / DATALIST_FILE).is_file():
        datalist = read_datalist(folder)
        lists = _split_by_site(folder, datalist)
        name = datalist.name
    else:
        lists = {site: (folder / site, read_datalist(folder / site)) for site in site_names(folder)}
        if (folder / GLOBAL / DATALIST_FILE).is_file():
            lists[GLOBAL] = (folder / GLOBAL, read_datalist(folder / GLOBAL))
        name = next(iter(lists.values()))[1].name
    column = _scanner_column([datalist for _, datalist in lists.values()], scanner_column)
    patients: dict[str, int] = {}
    cases: list[ImageCase] = []
    sites: dict[str, SiteImages] = {}
    for number, (title, (place, datalist)) in enumerate(lists.items()):
        site = inert_name(title, f"site {number + 1}")
        site = f"{site} ({number + 1})" if site in sites else site  # another name may be the replacement of this one
        sites[site] = _open_site(place, datalist, site)
        for split in SPLITS:
            cases += _read_cases(site, split, datalist, column, patients, len(sites[site].images))
    _check_forms(folder, sites)
    if not any(case.split == SPLITS[0] for case in cases):
        raise DataError("no_images", f"expected training images in {folder}, there are none.", path=folder)
    return DataSetImages(inert_name(name, "data set"), column, tuple(cases), sites)


def _check_forms(folder: Path, sites: Mapping[str, SiteImages]) -> None:
    """Raise if sites differ in the number of axes or channels of their images; edges may differ."""
    forms = {(site.images.ndim, channels_of(site.images.shape)): name for name, site in sites.items()}
    if len(forms) > 1:
        first, second = list(forms.values())[:2]
        raise DataError(
            "different_image_forms",
            f"expected images with equal numbers of axes and channels at all sites of {folder}, but '{first}' and "
            f"'{second}' differ: {sites[first].size} and {sites[second].size}. Look at each site by itself.",
            path=folder,
            sites=[first, second],
        )


def _split_by_site(folder: Path, datalist: Datalist) -> dict[str, tuple[Path, Datalist]]:
    """Return a data list for each site that the records name; records without a site form one site."""
    names = {entry_text(record, "site") or UNKNOWN for split in SPLITS for record in datalist.splits.get(split, [])}
    if len(names) > MAX_SITES:
        raise DataError(
            "too_many_groups",
            f"expected at most {MAX_SITES} sites in {folder}, got {len(names)} values of 'site'. Prepare the "
            "data with the right --site-column.",
            path=folder,
            found=len(names),
        )
    parts = {}
    for site in sorted(names):
        splits = {
            split: [record for record in records if (entry_text(record, "site") or UNKNOWN) == site]
            for split, records in datalist.splits.items()
        }
        own = Datalist(**{**vars(datalist), "splits": splits})
        parts["all images" if names == {UNKNOWN} else site] = (folder, own)
    return parts


def _scanner_column(lists: Sequence[Datalist], column: str | None) -> str:
    """Return the column with the scanner; empty if the user names none and no list has one."""
    records = [record for each in lists for split in SPLITS for record in each.splits.get(split, [])]
    known = {key for record in records for key in record} - {"image", "label", "target", "subject_id"}
    if column is not None and column not in known:
        raise DataError(
            "missing_column",
            f"no record of the data list has '{column}'. {did_you_mean(column, sorted(known))} "
            "(medfl prep folder keeps a column with --keep-column.)",
            column=column,
        )
    for candidate in (column,) if column is not None else SCANNER_COLUMNS:
        if candidate in known:
            values = {entry_text(record, candidate) for record in records}
            if len(values) <= MAX_SCANNERS:
                return candidate
            if column is not None:
                raise DataError(
                    "too_many_groups",
                    f"expected at most {MAX_SCANNERS} values in the scanner column '{column}', got {len(values)}: it "
                    "may identify patients. Give a column with one value for each scanner.",
                    column=column,
                    maximum=MAX_SCANNERS,
                    found=len(values),
                )
    return ""


def _open_site(folder: Path, datalist: Datalist, site: str) -> SiteImages:
    images = open_array(folder / datalist.image_array)
    if images.ndim == 2:
        raise DataError(
            "no_images",
            f"expected images in {folder}, got a table. `medfl federate statistics` describes tables.",
            path=folder,
        )
    channels, *edges = image_shape(images.shape)
    size = f"{' × '.join(map(str, edges))}{f', {channels} channels' if channels > 1 else ''}"
    spacing = datalist.goal.facts.get("spacing")
    facts = " × ".join(f"{edge:.4g}" for edge in spacing) + " mm" if isinstance(spacing, list) and spacing else ""
    reading = str(datalist.extra.get("intensities") or datalist.extra.get(IMAGE_READING_KEY) or "")
    masks = open_array(folder / datalist.mask_array) if datalist.mask_array else None
    counts = _count_targets(datalist, f"site '{site}'")
    return SiteImages(images, masks, size, facts, _short(reading), counts)


def _read_cases(
    site: str, split: str, datalist: Datalist, column: str, patients: dict[str, int], rows: int
) -> list[ImageCase]:
    """Return the images of a split of a site, and number new patients in place."""
    records = datalist.splits.get(split, [])
    place = f"site '{site}', split '{split}'"
    numbers = read_integers(records, "image", place)
    outside = (numbers < 0) | (numbers >= rows)
    if outside.any():
        raise DataError(
            "row_outside_array",
            f"expected rows in 0..{rows - 1} at {place}, got row {int(numbers[outside][0])}. The list and the array do "
            "not belong together.",
            row=int(numbers[outside][0]),
            maximum=rows - 1,
        )
    targets = _target_texts(datalist, records, place)
    cases = []
    for record, row, target in zip(records, numbers.tolist(), targets, strict=True):
        subject = entry_text(record, "subject_id") or f"\0{site}/{split}/{row}"
        scanner = _short(entry_text(record, column) or UNKNOWN) if column else ""
        cases.append(ImageCase(site, split, row, patients.setdefault(subject, len(patients)), scanner, _short(target)))
    return cases


def _short(text: str) -> str:
    """Return a text that is safe to print, with at most `MAX_NAME` characters."""
    text = inert_name(text, "unusual text") if text else ""
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"


def _target_texts(datalist: Datalist, records: Sequence[CaseRecord], place: str) -> list[str]:
    """Return the target of each record in words; empty texts for masks."""
    goal = datalist.goal
    if not records or goal.has_spatial_targets:
        return [""] * len(records)
    if goal.has_class_labels:
        labels = read_integers(records, "label", place).tolist()
        return [datalist.labels.get(str(label), str(label)) for label in labels]
    names = output_names(datalist, goal)
    values = record_targets(list(records), goal, place)
    return [_number_texts(goal, names, row) for row in values.reshape(len(values), -1)]


def _number_texts(goal: Objective, names: Sequence[str], values: torch.Tensor) -> str:
    """Return findings or numbers in words, for example ``effusion; nodule not known``."""
    numbers = values.tolist()
    if goal.label_sets(values[np.newaxis]) is None:
        return ", ".join("not known" if math.isnan(number) else f"{number:.4g}" for number in numbers)
    titles = [names[place] if place < len(names) else str(place) for place in range(len(numbers))]
    positive = [title for title, number in zip(titles, numbers, strict=True) if number == 1]
    unknown = [title for title, number in zip(titles, numbers, strict=True) if math.isnan(number)]
    parts = [join_words(positive)] if positive else [] if unknown else ["no finding"]
    return "; ".join([*parts, *([f"{join_words(unknown)} not known"] if unknown else [])])


def _count_targets(datalist: Datalist, place: str) -> dict[str, str]:
    """Return the numbers of training images by class, finding or structure, or the range of each number."""
    records, goal = datalist.splits.get(SPLITS[0], []), datalist.goal
    if goal.has_class_labels:
        labels = read_integers(records, "label", place)
        counts = np.bincount(labels[labels >= 0], minlength=datalist.num_classes).tolist()
        return {datalist.labels.get(str(label), str(label)): str(number) for label, number in enumerate(counts)}
    names = output_names(datalist, goal)
    if goal.has_spatial_targets:
        shown = [record.get(MASK_STRUCTURES_KEY, []) for record in records]
        first = 0 if goal.facts.get("overlapping") else 1
        counts = {
            names[n] if n < len(names) else str(n): str(sum(n in x for x in shown)) for n in range(first, goal.outputs)
        }
        return counts | {"nothing in the mask": str(sum(not x for x in shown))}
    if not records:
        return {}
    values = record_targets(list(records), goal, place)
    columns = values.reshape(len(values), -1).double().numpy()
    table: dict[str, str] = {}
    findings = goal.label_sets(values) is not None
    for number, column in enumerate(columns.T):
        name = names[number] if number < len(names) else f"number {number + 1}"
        known = column[~np.isnan(column)]
        missing = f", {len(column) - len(known)} not known" if len(known) < len(column) else ""
        if findings:
            table[name] = f"{int((known == 1).sum())} yes, {int((known == 0).sum())} no{missing}"
        elif len(known):
            low, middle, high = np.quantile(known, (0, 0.5, 1))
            table[name] = f"{middle:.4g} ({low:.4g} to {high:.4g}){missing}"
        else:
            table[name] = f"{len(column)} not known"
    return table
